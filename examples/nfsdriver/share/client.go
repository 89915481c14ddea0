package share

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
)

// ErrNoClient means that the kernel cannot mount a file system type.
var ErrNoClient = errors.New("the node's kernel has no client for this file system")

// A Client is whether the node's kernel can mount a type of network file system. Without it
// the driver starts, serves and mounts nothing, which otherwise only shows when the first pod does not
// start.
type Client struct {
	fsType  string
	missing bool
}

// NewClient asks the kernel for the type, which loads its module, as a mount would: it needs
// neither modprobe nor /lib/modules in the container. If the kernel does not have it, that is logged.
// What cannot be asked (a kernel before 5.2, no CAP_SYS_ADMIN) is taken to be there. It
// mounts nothing.
func NewClient(fsType string, log *slog.Logger) *Client {
	c := &Client{fsType: fsType, missing: errors.Is(askKernel(fsType), errNoType)}
	if c.missing {
		log.Error("no volume can be mounted on this node", "error", c.err())
	}
	return c
}

// errNoType is the kernel's answer for a type that it neither has nor can load.
var errNoType = errors.New("no such file system type")

// Check is for csiserver.ReadyCheck. A client that was missing is found once its module is
// loaded, by hand or by a mount. It reads only /proc.
func (c *Client) Check(context.Context) error {
	if !c.missing || listed(c.fsType) {
		return nil
	}
	return c.err()
}

func (c *Client) err() error {
	return fmt.Errorf("%w: %s is neither in /proc/filesystems nor a module that it can load: install the kernel's modules on the node "+
		"(Ubuntu: linux-modules-extra-$(uname -r); Fedora and RHEL: kernel-modules; else a node image whose kernel has NFS) and run modprobe %s there", ErrNoClient, c.fsType, c.fsType)
}

// listed says whether the kernel has the type now.
func listed(fsType string) bool {
	f, err := os.Open("/proc/filesystems")
	if err != nil {
		return false
	}
	defer f.Close()
	return lists(f, fsType)
}

// lists reads the format of /proc/filesystems: a line per type, its last word.
func lists(r io.Reader, fsType string) bool {
	for s := bufio.NewScanner(r); s.Scan(); {
		if words := strings.Fields(s.Text()); len(words) > 0 && words[len(words)-1] == fsType {
			return true
		}
	}
	return false
}
