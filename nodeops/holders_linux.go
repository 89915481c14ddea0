package nodeops

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/mountapi"
)

// users lists the processes that keep the mount busy: those with a file open on it, or
// their working directory, root or executable there. It reads only links in /proc and does
// not access the mount, which may be hung. Processes in other mount namespaces have the
// same files under other paths and are not found.
func users(mountPoint string) []string {
	pids, _ := filepath.Glob("/proc/[0-9]*")
	slices.SortFunc(pids, func(a, b string) int { return pidIn(a) - pidIn(b) })
	var found []string
	for _, dir := range pids {
		links, _ := filepath.Glob(dir + "/fd/*")
		links = append(links, dir+"/cwd", dir+"/root", dir+"/exe")
		if slices.ContainsFunc(links, func(link string) bool { return isBelow(link, mountPoint) }) {
			name, _ := os.ReadFile(dir + "/comm")
			found = append(found, fmt.Sprintf("%s (%s)", filepath.Base(dir), strings.TrimSpace(string(name))))
		}
	}
	return found
}

func (n *Node) releasedDevice(d Device) error {
	dev, err := openDevice(d)
	if errors.Is(err, errNoDevice) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dev.close()
	return n.released(dev)
}

func (n *Node) released(dev *device) error {
	t, err := readTable()
	if err != nil {
		return err
	}
	at, err := t.uses(dev)
	if err != nil {
		return err
	}
	if len(at) > 0 {
		return faultf(csierr.Precondition, "%s is still mounted or published at %s: unpublish and unstage it first", dev.path, paths(at))
	}
	var release func()
	if err := retryBusy(func() error {
		var err error
		release, err = dev.hold()
		return err
	}); err != nil {
		return fmt.Errorf("%w%s", err, n.holdersOf(dev))
	}
	release()
	return nil
}

// holdersOf describes what holds the device, for an error.
func (n *Node) holdersOf(dev *device) string {
	var by []string
	above, _ := os.ReadDir(fmt.Sprintf("/sys/dev/block/%v/holders", dev.number()))
	for _, h := range above {
		by = append(by, "device "+h.Name())
	}
	others, _ := n.mountedElsewhere(dev)
	for _, h := range others {
		by = append(by, fmt.Sprintf("process %d (%s) in another mount namespace, at %s", h.PID, h.Command, strings.Join(h.Paths, ", ")))
	}
	if len(by) == 0 {
		return ""
	}
	return ": " + strings.Join(by, "; ")
}

func (n *Node) holders(d Device) ([]Holder, error) {
	dev, err := openDevice(d)
	if err != nil {
		return nil, err
	}
	defer dev.close()
	return n.mountedElsewhere(dev)
}

func (n *Node) mountedElsewhere(dev *device) ([]Holder, error) {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return nil, err
	}
	pids, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	slices.SortFunc(pids, func(a, b string) int { return pidIn(a) - pidIn(b) })
	seen := map[string]bool{own: true}
	var found []Holder
	for _, dir := range pids {
		namespace, err := os.Readlink(dir + "/ns/mnt")
		if err != nil || seen[namespace] {
			continue // ended, not accessible, or already read
		}
		mounts, err := mountapi.TableOf(pidIn(dir))
		if err != nil {
			continue
		}
		seen[namespace] = true
		var on []mountapi.Mount
		for _, m := range mounts {
			if m.Major == dev.major && m.Minor == dev.minor {
				on = append(on, m)
			}
		}
		if len(on) > 0 {
			name, _ := os.ReadFile(dir + "/comm")
			found = append(found, Holder{pidIn(dir), strings.TrimSpace(string(name)), mountPoints(on)})
		}
	}
	return found, nil
}

func pidIn(dir string) int {
	pid, _ := strconv.Atoi(filepath.Base(dir))
	return pid
}

func isBelow(link, dir string) bool {
	to, err := os.Readlink(link)
	to = strings.TrimSuffix(to, " (deleted)")
	return err == nil && (to == dir || strings.HasPrefix(to, strings.TrimSuffix(dir, "/")+"/"))
}
