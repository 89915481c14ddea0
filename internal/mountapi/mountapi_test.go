package mountapi

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestParseMountInfo(t *testing.T) {
	tests := []struct {
		line string
		want Mount
	}{
		{"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue",
			Mount{36, 35, 98, 0, "/mnt1", "/mnt2", "rw,noatime", "ext3", "/dev/root", "rw,errors=continue"}},
		{"36 35 98:0 / / rw - ext4 /dev/x rw", Mount{36, 35, 98, 0, "/", "/", "rw", "ext4", "/dev/x", "rw"}},
		{"36 35 0:5 / /a ro shared:1 master:2 propagate_from:3 - tmpfs tmpfs rw",
			Mount{36, 35, 0, 5, "/", "/a", "ro", "tmpfs", "tmpfs", "rw"}},
		{`36 35 0:5 / /with\040space\011tab\012line\134slash\043 rw - tmpfs none rw`,
			Mount{36, 35, 0, 5, "/", "/with space\ttab\nline\\slash#", "rw", "tmpfs", "none", "rw"}},
		{"36 35 0:5 / /a rw - fuse.x  rw", Mount{36, 35, 0, 5, "/", "/a", "rw", "fuse.x", "", "rw"}}, // an empty source
	}
	for _, test := range tests {
		got, err := ParseMountInfo([]byte(test.line + "\n"))
		if err != nil || len(got) != 1 || got[0] != test.want {
			t.Errorf("%q: %+v, %v; want %+v", test.line, got, err, test.want)
		}
	}
	for _, line := range []string{"", "x", "a 35 98:0 / / rw - ext4 d rw", "36 b 98:0 / / rw - ext4 d rw", "36 35 98 / / rw - ext4 d rw",
		"36 35 98:0 / / rw ext4 d rw", "36 35 98:0 / / rw -", "36 35 -1:0 / / rw - ext4 d rw"} {
		if got, err := ParseMountInfo([]byte(line + "\n")); err == nil {
			t.Errorf("%q was parsed as %+v", line, got)
		}
	}
}

func TestSetDevices(t *testing.T) {
	asked := 0
	lookUp := func(source string) (major, minor uint32, ok bool) {
		asked++
		return 7, 1, source == "/dev/loop1"
	}
	var mounts, want []Mount
	for _, c := range []struct {
		fsType, source string
		found          bool
	}{
		{"btrfs", "/dev/loop1", true}, {"btrfs", "/dev/loop2", false}, {"btrfs", "/dev/loop1", true}, {"btrfs", "/dev/loop2", false}, {"fuse.btrfs", "/dev/loop1", false}, {"tmpfs", "/dev/loop1", false},
	} {
		m := Mount{FSType: c.fsType, Source: c.source, Minor: 39}
		mounts = append(mounts, m)
		if c.found {
			m.Major, m.Minor = 7, 1
		}
		want = append(want, m)
	}
	setDevices(mounts, lookUp)
	if !slices.Equal(mounts, want) {
		t.Errorf("%+v, want %+v", mounts, want)
	}
	if asked != 2 {
		t.Errorf("looked up %d times, want once for each source", asked)
	}
}

func TestParseOptions(t *testing.T) {
	tests := []struct {
		flags string // separated by |
		attr  Attr
		data  string // separated by |
	}{
		{"", 0, ""},
		{"ro", ReadOnly, ""},
		{"ro,rw", 0, ""},
		{"rw|ro", ReadOnly, ""},
		{"nosuid,nodev|noexec", NoSuid | NoDev | NoExec, ""},
		{"noatime,strictatime", StrictAtime, ""},
		{"strictatime,noatime", NoAtime, ""},
		{"noatime,atime", 0, ""},
		{"defaults,_netdev,nofail,x-systemd.automount,relatime", 0, ""},
		{"errors=remount-ro,discard", 0, "errors=remount-ro|discard"},
		{`context="system_u:object_r:container_file_t:s0:c1,c2",noatime`, NoAtime, "context=system_u:object_r:container_file_t:s0:c1,c2"},
		{"data=ordered,,", 0, "data=ordered"},
		{"user,user=joe,group", 0, "user=joe"},
	}
	for _, test := range tests {
		got, err := ParseOptions(strings.Split(test.flags, "|"))
		var data []string
		if test.data != "" {
			data = strings.Split(test.data, "|")
		}
		if err != nil || got.Attr != test.attr || !slices.Equal(got.Data, data) {
			t.Errorf("%q: %v %q, %v; want %v %q", test.flags, got.Attr, got.Data, err, test.attr, data)
		}
	}
	for _, flags := range []string{"bind", "ro,remount", "shared", `context="open`, "a\x00b"} {
		if got, err := ParseOptions([]string{flags}); err == nil {
			t.Errorf("%q was taken as %+v", flags, got)
		}
	}
}

// csi.proto: mount_flags may be sensitive, and must not be leaked.
func TestErrorsShowNoValue(t *testing.T) {
	for _, flag := range []string{`password="hunter2`, `"hunter2`, "password=hunter2\x00", "loop=hunter2", `"hunter2,x"`, `"hunter2,x=y"`} {
		o, err := ParseOptions([]string{flag})
		if err == nil {
			_, err = JoinOptions(o.Data)
		}
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: error is %v", flag, err)
		}
	}
}

func TestMountAttr(t *testing.T) {
	for options, want := range map[string]Attr{
		"rw,relatime":                                0,
		"ro,nosuid,nodev,noexec,relatime":            ReadOnly | NoSuid | NoDev | NoExec,
		"rw,noatime,nodiratime,nosymfollow,idmapped": NoAtime | NoDirAtime | NoSymFollow,
		"rw":            StrictAtime, // which has no word in the table
		"ro,nodiratime": ReadOnly | NoDirAtime | StrictAtime,
	} {
		if got := (Mount{Options: options}).MountAttr(); got != want {
			t.Errorf("%s: %v, want %v", options, got, want)
		}
	}
}

func FuzzParseMountInfo(f *testing.F) {
	f.Add([]byte("36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"))
	f.Add([]byte(`36 35 0:5 / /\040\1 rw - tmpfs none rw`))
	f.Fuzz(func(t *testing.T, text []byte) {
		mounts, err := ParseMountInfo(text)
		if (mounts == nil) == (err == nil) {
			t.Errorf("%d mounts and error %v", len(mounts), err)
		}
		for _, m := range mounts {
			m.MountAttr()
			m.ReadOnly()
		}
	})
}

// Whatever is read is what is meant: reading it again changes nothing.
func FuzzParseOptions(f *testing.F) {
	f.Add(`ro,noatime,context="a,b",data=x`)
	f.Add(`"`)
	f.Fuzz(func(t *testing.T, flags string) {
		o, err := ParseOptions([]string{flags})
		if err != nil {
			return
		}
		var again []string
		if o.Attr != 0 {
			again = append(again, o.Attr.String())
		}
		for _, d := range o.Data {
			again = append(again, `"`+d+`"`)
		}
		if o2, err := ParseOptions(again); err != nil || !reflect.DeepEqual(o, o2) {
			t.Errorf("%q gives %+v, its own text %q gives %+v (%v)", flags, o, again, o2, err)
		}
	})
}
