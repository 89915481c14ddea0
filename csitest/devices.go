package csitest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A device is one that a volume was on: the number, and the kernel's count of what
// was attached there. Another disk at the same number has another count.
type device struct{ number, seq string }

// deviceAt is the block device below the path: that of the file system, or the one
// that the path is. It is empty if there is none, as for a share.
func deviceAt(path string) device {
	number := deviceNumber(path)
	seq, err := os.ReadFile(filepath.Join("/sys/dev/block", number, "diskseq"))
	if number == "" || err != nil {
		return device{}
	}
	return device{number: number, seq: strings.TrimSpace(string(seq))}
}

// deviceBelow is the device of a volume below the path, or none if the volume is a directory.
// It has to be gone when the run ends.
func (c *ruleRun) deviceBelow(path string) device {
	d := deviceAt(path)
	if d == deviceAt(c.run.dir) {
		return device{}
	}
	if d.number != "" {
		c.run.mu.Lock()
		defer c.run.mu.Unlock()
		if c.run.devices == nil {
			c.run.devices = map[device]bool{}
		}
		c.run.devices[d] = true
	}
	return d
}

// attachedDevices describes those devices of volumes that are still there.
func (r *run) attachedDevices() (left []string) {
	for _, d := range remaining(slices.Collect(maps.Keys(r.devices))...) {
		left = append(left, "the device "+d.String())
	}
	slices.Sort(left)
	return left
}

// attached reports whether the device is still there.
func (d device) attached() bool {
	if d.number == "" {
		return false
	}
	dir := filepath.Join("/sys/dev/block", d.number)
	seq, err := os.ReadFile(filepath.Join(dir, "diskseq"))
	size, _ := os.ReadFile(filepath.Join(dir, "size"))
	return err == nil && strings.TrimSpace(string(seq)) == d.seq && strings.TrimSpace(string(size)) != "0"
}

// remaining returns the devices that stay. It waits up to 5 s for all of them together to go,
// because udev may hold them open.
func remaining(devices ...device) []device {
	left := slices.Clone(devices)
	for range 50 {
		if left = slices.DeleteFunc(left, func(d device) bool { return !d.attached() }); len(left) == 0 {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return left
}

// String names the device, what is behind it, and who else holds it.
func (d device) String() string {
	name, err := os.Readlink(filepath.Join("/sys/dev/block", d.number))
	if err != nil {
		return d.number
	}
	text := filepath.Base(name)
	if behind := backing(d.number); behind != "" {
		text += " of " + behind
	}
	for _, h := range mountedElsewhere(d.number) {
		text += ", mounted in the mount namespace of " + h.String()
	}
	return text
}

// backing is the file behind a loop device, or the name of a device-mapper device.
func backing(number string) string {
	for _, attribute := range []string{"loop/backing_file", "dm/name"} {
		if text, err := os.ReadFile(filepath.Join("/sys/dev/block", number, attribute)); err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	return ""
}

// layers are what is behind the device and, if it is a mapping, behind the devices below it.
func (d device) layers() (all []string) {
	if d.number == "" {
		return nil
	}
	dirs := []string{filepath.Join("/sys/dev/block", d.number)}
	for len(dirs) > 0 {
		number, err := os.ReadFile(filepath.Join(dirs[0], "dev"))
		if behind := backing(strings.TrimSpace(string(number))); err == nil && behind != "" {
			all = append(all, behind)
		}
		below, _ := filepath.Glob(filepath.Join(dirs[0], "slaves/*")) // the pattern is good
		dirs = append(dirs[1:], below...)
	}
	return all
}

// devicesOf are the loop devices and mappings with one of these behind them.
func devicesOf(behind []string) (all []device) {
	dirs, _ := filepath.Glob("/sys/block/*") // the pattern is good
	for _, dir := range dirs {
		number, err := os.ReadFile(filepath.Join(dir, "dev"))
		seq, seqErr := os.ReadFile(filepath.Join(dir, "diskseq"))
		d := device{number: strings.TrimSpace(string(number)), seq: strings.TrimSpace(string(seq))}
		if err == nil && seqErr == nil && slices.Contains(behind, backing(d.number)) {
			all = append(all, d)
		}
	}
	return all
}

// A holder is a process in whose mount namespace, which is not this one, a device is mounted.
// Such a mount keeps the device busy after it is gone here: a container that was started while
// the volume was mounted has one.
type holder struct {
	pid        int
	name, path string
}

func (h holder) String() string { return fmt.Sprintf("process %d (%s), at %s", h.pid, h.name, h.path) }

// mountedElsewhere finds one process of each other mount namespace in which the device is mounted.
func mountedElsewhere(number string) (all []holder) {
	own, _ := os.Readlink("/proc/self/ns/mnt")
	known := map[string]bool{own: true}
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is good
	for _, dir := range dirs {
		namespace, err := os.Readlink(filepath.Join(dir, "ns/mnt"))
		if err != nil || known[namespace] {
			continue
		}
		table, err := os.ReadFile(filepath.Join(dir, "mountinfo"))
		known[namespace] = err == nil
		for line := range strings.Lines(string(table)) {
			if f := strings.Fields(line); len(f) > 4 && f[2] == number {
				h := holder{path: unescape(f[4])}
				h.pid, _ = strconv.Atoi(filepath.Base(dir))
				name, _ := os.ReadFile(filepath.Join(dir, "comm"))
				h.name = strings.TrimSpace(string(name))
				all = append(all, h)
				break
			}
		}
	}
	return all
}

// mustGo fails the rule if devices of volumes stay. One that is mounted in a mount namespace of
// others, no driver can detach.
func (c *ruleRun) mustGo(devices ...device) {
	var held []string
	for _, d := range remaining(devices...) {
		holders, family := mountedElsewhere(d.number), c.run.family()
		if len(holders) > 0 && !slices.ContainsFunc(holders, func(h holder) bool { return family[h.pid] }) {
			held = append(held, d.String())
			continue
		}
		c.error("no device after DeleteVolume", "%s", d)
	}
	if len(held) > 0 && len(c.failures) == 0 {
		c.excuse("another mount namespace holds the device: %s", held[0])
	}
}
