package nodeops

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
)

func deviceAt(path string) (MountedDevice, error) {
	path, err := mountapi.Resolve(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return MountedDevice{}, errNotMounted
	}
	if err != nil {
		return MountedDevice{}, err
	}
	table, err := readTable()
	if err != nil {
		return MountedDevice{}, err
	}
	on := table.at(path)
	if len(on) == 0 {
		return MountedDevice{}, errNotMounted
	}
	m := on[len(on)-1]
	node, isNode, err := nodeNumber(m)
	if err != nil {
		return MountedDevice{}, err
	}
	if isNode {
		return MountedDevice{Block: true, Major: node.major, Minor: node.minor, Path: kernelPath(node)}, nil
	}
	return MountedDevice{Major: m.Major, Minor: m.Minor, Path: kernelPath(number{m.Major, m.Minor}), Source: m.Source}, nil
}

// kernelPath returns the path of a block device in devtmpfs; "" if there is none.
func kernelPath(dev number) string {
	text, _ := os.ReadFile(fmt.Sprintf("/sys/dev/block/%v/uevent", dev))
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); ok {
			return "/dev/" + name
		}
	}
	return ""
}
