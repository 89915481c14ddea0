package mountapi

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// Mount is one line of /proc/PID/mountinfo; the fields are named as proc(5)
// names them.
type Mount struct {
	ID, ParentID int
	Major, Minor uint32 // device of the file system; of a btrfs see Table
	Root         string // path in the file system that is the mount's root
	MountPoint   string // relative to the reading process's root
	Options      string // of this mount only
	FSType       string
	Source       string
	SuperOptions string // of the superblock, shared by all its mounts
}

// ReadOnly reports whether writes through this mount are refused, by the mount or by the
// superblock.
func (m Mount) ReadOnly() bool { return m.MountReadOnly() || m.SuperReadOnly() }

// MountReadOnly reports whether this mount refuses writes.
func (m Mount) MountReadOnly() bool { return hasOption(m.Options, "ro") }

// SuperReadOnly reports whether the superblock refuses writes, which a file system may
// change to after an error. From Linux 6.12 on (commit d3476f3dad4a) ext4 shows that as
// emergency_ro only.
func (m Mount) SuperReadOnly() bool {
	return hasOption(m.SuperOptions, "ro") || hasOption(m.SuperOptions, "emergency_ro")
}

// FailedReadOnly reports whether the file system became read-only after an error: it
// refuses writes, though it was not mounted read-only.
func (m Mount) FailedReadOnly() bool { return m.SuperReadOnly() && !m.MountReadOnly() }

// SameDevice reports whether both show the same file system instance.
func (m Mount) SameDevice(o Mount) bool { return m.Major == o.Major && m.Minor == o.Minor }

// SuperOption returns the value of a file system's option, if the kernel shows it.
func (m Mount) SuperOption(key string) (value string, shown bool) {
	for o := range strings.SplitSeq(m.SuperOptions, ",") {
		if k, v, _ := strings.Cut(o, "="); k == key {
			return v, true
		}
	}
	return "", false
}

func hasOption(list, want string) bool {
	for o := range strings.SplitSeq(list, ",") {
		if o == want {
			return true
		}
	}
	return false
}

// setDevices sets the device of each btrfs mount to the block device that
// its Source names. The kernel's table has an anonymous device there, the same for all
// mounts of one file system; st_dev is yet another one in each subvolume.
func setDevices(mounts []Mount, number func(source string) (major, minor uint32, ok bool)) {
	type device struct {
		major, minor uint32
		ok           bool
	}
	var known map[string]device
	for i := range mounts {
		m := &mounts[i]
		if m.FSType != "btrfs" {
			continue
		}
		d, seen := known[m.Source]
		if !seen {
			d.major, d.minor, d.ok = number(m.Source)
			if known == nil {
				known = make(map[string]device)
			}
			known[m.Source] = d
		}
		if d.ok {
			m.Major, m.Minor = d.major, d.minor
		}
	}
}

// ParseMountInfo parses the text of /proc/PID/mountinfo, in its order: of
// several mounts on one path the last one is on top. Devices are as the text has them.
func ParseMountInfo(text []byte) ([]Mount, error) {
	mounts := make([]Mount, 0, bytes.Count(text, []byte{'\n'}))
	for line := range bytes.Lines(text) {
		m, err := parseLine(strings.TrimSuffix(string(line), "\n"))
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

// 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
func parseLine(line string) (Mount, error) {
	bad := func(what string) (Mount, error) {
		return Mount{}, fmt.Errorf("parse mountinfo line %q: %s", line, what)
	}
	f := strings.Split(line, " ")
	sep := 6
	for sep < len(f) && f[sep] != "-" {
		sep++
	}
	if len(f) < sep+3 {
		return bad("too few fields")
	}
	var m Mount
	var err error
	if m.ID, err = strconv.Atoi(f[0]); err != nil {
		return bad("mount id is not a number")
	}
	if m.ParentID, err = strconv.Atoi(f[1]); err != nil {
		return bad("parent id is not a number")
	}
	major, minor, ok := strings.Cut(f[2], ":")
	ma, err1 := strconv.ParseUint(major, 10, 32)
	mi, err2 := strconv.ParseUint(minor, 10, 32)
	if !ok || err1 != nil || err2 != nil {
		return bad("device is not major:minor")
	}
	m.Major, m.Minor = uint32(ma), uint32(mi)
	m.Root, m.MountPoint, m.Options = unescape(f[3]), unescape(f[4]), f[5]
	m.FSType, m.Source = unescape(f[sep+1]), unescape(f[sep+2])
	if len(f) > sep+3 { // some kernels print an empty super option field as nothing
		m.SuperOptions = f[sep+3]
	}
	return m, nil
}

// unescape undoes the kernel's mangling: space, tab, newline, backslash and #
// are written as a backslash and three octal digits.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
