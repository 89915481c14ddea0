package csitest

import (
	"errors"
	"os"
	"strings"
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
