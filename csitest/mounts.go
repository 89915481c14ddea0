package csitest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A mount is a line of /proc/self/mountinfo.
type mount struct {
	device, root, point, options, fsType string
}

// mounts are those at or below a path, or all of them below "", in the order in which they were made.
func mounts(path string) (some []mount) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(text)) {
		before, after, _ := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if len(f) < 6 || len(g) < 1 {
			continue
		}
		if point := unescape(f[4]); point == path || strings.HasPrefix(point, path+"/") {
			some = append(some, mount{device: f[2], root: unescape(f[3]), point: point, options: f[5], fsType: g[0]})
		}
	}
	return some
}

// mountsAt are those at a path.
func mountsAt(path string) (some []mount) {
	for _, m := range mounts(path) {
		if m.point == path {
			some = append(some, m)
		}
	}
	return some
}

// has reports whether a mount option is set.
func (m mount) has(option string) bool {
	for o := range strings.SplitSeq(m.options, ",") {
		if o == option {
			return true
		}
	}
	return false
}

// unescape undoes what mountinfo does to white space and backslashes.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace

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

// goneSoon waits up to 5 s for the device to go, because udev may hold it open.
func (d device) goneSoon() bool {
	for range 50 {
		if !d.attached() {
			return true
		}
		time.Sleep(100 * time.Millisecond)
	}
	return false
}

func (d device) String() string {
	name, err := os.Readlink(filepath.Join("/sys/dev/block", d.number))
	if err != nil {
		return d.number
	}
	backing, _ := os.ReadFile(filepath.Join("/sys/dev/block", d.number, "loop/backing_file"))
	return strings.TrimSpace(fmt.Sprintf("%s %s", filepath.Base(name), backing))
}

// write makes a file durable, or fails the rule.
func (c *ruleRun) write(path string, data []byte) {
	f, err := c.run.openFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err == nil {
		_, err = f.Write(data)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		c.fail("a writable volume", "%v", err)
	}
}

// deviceSize is where the end of the device is.
func deviceSize(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.Seek(0, 2)
}
