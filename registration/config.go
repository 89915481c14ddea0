package registration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

const (
	// DefaultDir is the path at which deployments mount kubelet's directory by convention.
	DefaultDir = "/registration"
	// DefaultKubeletDir is the only directory that kubelet watches, unless it was
	// started with another --root-dir.
	DefaultKubeletDir = "/var/lib/kubelet/plugins_registry"
)

// Shutdown selects whether the driver stays registered when Serve ends.
type Shutdown int

const (
	// Deregister removes the socket, and kubelet removes the driver from CSINode.
	// Until the next start, volumes can neither be attached to this node nor be
	// provisioned for its topology, and the scheduler knows no volume limit for it.
	// After an uninstall nothing is left behind. Volumes stay mounted.
	Deregister Shutdown = iota
	// KeepRegistered leaves the socket file, which no process serves. As kubelet checks
	// only the file, the driver stays in CSINode while it restarts, and calls to it
	// fail and are retried meanwhile. The next start replaces the file, for which
	// kubelet still deregisters the driver for one or two seconds. After an
	// uninstall the driver stays in CSINode until kubelet restarts; kubelet then
	// retries the stale socket until an administrator deletes it. After a reboot of the
	// node kubelet finds the stale socket too, backs off after each attempt, and may
	// then register the restarted driver up to two minutes late.
	KeepRegistered
)

// A Config describes a driver to kubelet. The first three fields are required.
type Config struct {
	// DriverName is the name that GetPluginInfo returns: a domain name of at most 63
	// characters. The socket file is <DriverName>-reg.sock, as
	// with node-driver-registrar, so that the two never register a driver twice.
	DriverName string
	// Endpoint is the driver's CSI socket as this process sees it:
	// unix:///csi/csi.sock, unix:/csi/csi.sock or an absolute path.
	Endpoint string
	// KubeletEndpoint is the same socket as kubelet sees it, which is on the host
	// and not in a container: /var/lib/kubelet/plugins/csi.example.com/csi.sock.
	KubeletEndpoint string

	// Dir is kubelet's registration directory as this process sees it, by default
	// DefaultDir. It may not exist yet, and may be longer than a socket address (on
	// Linux). A driver that mounts the parent, and not this directory itself, also
	// sees the directory after it is deleted and recreated.
	Dir string
	// KubeletDir is the same directory as kubelet sees it, by default
	// DefaultKubeletDir. Only its length is checked: kubelet cannot connect to a path of
	// more than 107 bytes, and no other check reports that.
	KubeletDir string
	// SupportedVersions are the versions of the registration protocol for CSI, by default
	// "1.0.0", which kubelet expects; they are unrelated to CSI 1.13.
	SupportedVersions []string
	// Ready delays the first registration until it returns true: kubelet calls
	// NodeGetInfo right after it. It is called after the driver has answered, one call at a
	// time with a deadline of 30 seconds, again after a delay that grows from a tenth of a
	// second to some seconds, and not again once it has returned true. It fits csiserver.WithReady too. Nil means ready.
	Ready func(context.Context) (bool, error)
	// OnShutdown selects whether the driver stays registered when Serve ends, by default
	// Deregister.
	OnShutdown Shutdown
	// Logger receives each change of the Status. Nil discards.
	Logger *slog.Logger
}

// sunPathMax is the longest path that fits into a socket address with its
// terminating zero: 107 bytes on Linux.
const sunPathMax = len(syscall.RawSockaddrUnix{}.Path) - 1

// maxNameLength is that of the CSI specification, and of CSINode.
const maxNameLength = 63

var (
	domainName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*$`)
	version    = regexp.MustCompile(`^[0-9]+(\.[0-9]+){1,2}$`)
)

// complete validates c and sets the defaults.
func (c *Config) complete() error {
	var errs []error
	refuse := func(field, value, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s %q: "+format, append([]any{field, value}, args...)...))
	}
	path := func(field, value string) string {
		clean := filepath.Clean(strings.TrimPrefix(strings.TrimPrefix(value, "unix:"), "//"))
		switch {
		case !filepath.IsAbs(clean):
			refuse(field, value, "want an absolute path")
		case strings.ContainsRune(clean, 0):
			refuse(field, value, "the path contains a zero byte")
		}
		return clean
	}
	fits := func(field, value string) {
		if len(value) > sunPathMax {
			refuse(field, value, "%d bytes, and a socket address holds %d: use a shorter path", len(value), sunPathMax)
		}
	}

	if len(c.DriverName) > maxNameLength || !domainName.MatchString(c.DriverName) {
		refuse("DriverName", c.DriverName, "want a domain name of at most %d characters", maxNameLength)
	}
	c.Endpoint = path("Endpoint", c.Endpoint)
	c.KubeletEndpoint = path("KubeletEndpoint", c.KubeletEndpoint)
	fits("Endpoint", c.Endpoint)
	fits("KubeletEndpoint", c.KubeletEndpoint)
	if c.Dir == "" {
		c.Dir = DefaultDir
	}
	if c.KubeletDir == "" {
		c.KubeletDir = DefaultKubeletDir
	}
	c.Dir = path("Dir", c.Dir)
	c.KubeletDir = path("KubeletDir", c.KubeletDir)
	if c.Endpoint == filepath.Join(c.Dir, c.socketName()) {
		refuse("Endpoint", c.Endpoint, "this is the registration socket; want the driver's CSI socket")
	}
	fits("KubeletDir", filepath.Join(c.KubeletDir, c.socketName()))
	if c.SupportedVersions == nil {
		c.SupportedVersions = []string{"1.0.0"}
	}
	c.SupportedVersions = slices.Clone(c.SupportedVersions)
	for _, v := range c.SupportedVersions {
		if !version.MatchString(v) {
			refuse("SupportedVersions", v, "want two or three numbers, such as 1.0.0")
		}
	}
	if !slices.ContainsFunc(c.SupportedVersions, func(v string) bool { return strings.HasPrefix(v, "1.") }) {
		errs = append(errs, errors.New("SupportedVersions: kubelet accepts only 1.x; add one, such as 1.0.0"))
	}
	if c.OnShutdown != Deregister && c.OnShutdown != KeepRegistered {
		errs = append(errs, fmt.Errorf("OnShutdown %d: want Deregister or KeepRegistered", c.OnShutdown))
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return errors.Join(errs...)
}

// socketName is fixed, because kubelet rejects a second socket of the same driver
// while the first one exists, and a name per instance would be left behind after a
// kill.
func (c *Config) socketName() string { return c.DriverName + "-reg.sock" }
