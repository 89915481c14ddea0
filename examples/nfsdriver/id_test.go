package main

import (
	"strings"
	"testing"
)

func TestVolumeID(t *testing.T) {
	for _, id := range []string{
		"vol1#nas#/#pvc-1#delete",
		"vol1#nas.example.com#/srv/volumes#ns/claim#retain",
		"vol1#10.0.0.7#/srv#a b/ü#archive#port=2050,vers=4.1",
		"vol1#fd00::7#/srv#...#delete",
		"vol1d#nas#/srv#0123456789abcdef0123456789abcdef#archive#port=2050",
	} {
		r, err := parseVolumeID(id)
		if err != nil || r.encode() != id {
			t.Errorf("%s: %+v, %v", id, r, err)
		}
	}
	if r, _ := parseVolumeID("vol1#fd00::7#/srv#a/b#delete"); r.source(r.SubDir) != "[fd00::7]:/srv/a/b" {
		t.Errorf("mounted is %s", r.source(r.SubDir))
	}
}

// What is not exactly how the driver writes an ID leads nowhere
// (kubernetes-csi/csi-driver-nfs#1241: an empty part led to the share).
func TestBadVolumeID(t *testing.T) {
	for _, id := range []string{
		"", "vol-1", "nas#srv#pvc-1##", "vol2#nas#/srv#a#delete", "snap1#nas#/srv#a#delete",
		"vol1#nas#/srv#a", "vol1#nas#/srv#a#delete#", "vol1#nas#/srv#a#delete##", "vol1#nas#/srv#a#delete#port=1#x",
		"vol1##/srv#a#delete", "vol1#nas##a#delete", "vol1#nas#/srv##delete", "vol1#nas#/srv#a#", "vol1#nas#/srv#a#erase",
		"vol1#nas#srv#a#delete", "vol1#nas#/srv/#a#delete", "vol1#nas#/srv//x#a#delete", "vol1#nas#/srv/../x#a#delete", "vol1#nas#/..#a#delete",
		"vol1#nas#/srv#/#delete", "vol1#nas#/srv#/etc#delete", "vol1#nas#/srv#.#delete", "vol1#nas#/srv#..#delete", "vol1#nas#/srv#a/../b#delete",
		"vol1#nas#/srv#../b#delete", "vol1#nas#/srv#a/#delete", "vol1#nas#/srv#a//b#delete", "vol1#nas#/srv#./a#delete", `vol1#nas#/srv#..\b#delete`,
		"vol1#nas#/srv#.csikit-nfs#delete", "vol1#nas#/srv#.csikit-nfs/trash#delete", "vol1#nas#/srv#a/.csikit-nfs2#delete",
		"vol1d#nas#/srv#a#delete", "vol1d#nas#/srv##delete", "vol1d#nas#/srv#0123456789abcdef0123456789abcdeF#delete", "vol1d#nas#/srv#../..#delete",
		"vol1#nas#/srv#a\x00b#delete", "vol1#nas#/srv#a\nb#delete", "vol1#nas#/srv#a\x1bb#delete", "vol1#nas#/srv#\xff#delete", "vol1#nas#/srv#a\u202eb#delete",
		"vol1#NAS#/srv#a#delete", "vol1#-o#/srv#a#delete", "vol1#nas/x#/srv#a#delete", "vol1#nas,x#/srv#a#delete", "vol1#[fd00::7]#/srv#a#delete",
		"vol1#FD00::7#/srv#a#delete", "vol1#fe80::1%eth0#/srv#a#delete", "vol1#010.0.0.1/8#/srv#a#delete",
		"vol1#nas#/srv#a#delete#vers=4.1,port=1", "vol1#nas#/srv#a#delete#port=1,port=1", "vol1#nas#/srv#a#delete#port=1,port=2",
		"vol1#nas#/srv#a#delete#soft", "vol1#nas#/srv#a#delete#addr=1.2.3.4", "vol1#nas#/srv#a#delete#port=", "vol1#nas#/srv#a#delete#port=1,",
		"vol1#nas#/srv#a#delete#nfsvers=3", "vol1#nas#/srv#" + strings.Repeat("a", 120) + "#delete",
	} {
		if r, err := parseVolumeID(id); err == nil {
			t.Errorf("%q is taken for %+v", id, r)
		}
	}
}

func TestSnapshotID(t *testing.T) {
	const key = "0123456789abcdef0123456789abcdef"
	for _, id := range []string{"snap1#nas#/srv#" + key, "snap1#nas#/srv#" + key + "#vers=3"} {
		if r, err := parseSnapshotID(id); err != nil || r.encode() != id {
			t.Errorf("%s: %+v, %v", id, r, err)
		}
	}
	for _, id := range []string{"", "snap1#nas#/srv#", "snap1#nas#/srv#../../x", "snap1#nas#/srv#" + key + "/x", "snap1#nas#/srv#" + key + "#", "vol1#nas#/srv#" + key} {
		if r, err := parseSnapshotID(id); err == nil {
			t.Errorf("%q is taken for %+v", id, r)
		}
	}
}

func FuzzVolumeID(f *testing.F) {
	f.Add("vol1#nas.example.com#/srv/volumes#ns/claim#retain#port=2050,vers=4.1")
	f.Add("vol1#fd00::7#/#a#delete")
	f.Add("snap1#nas#/srv#0123456789abcdef0123456789abcdef#sec=krb5")
	f.Fuzz(func(t *testing.T, id string) {
		if r, err := parseSnapshotID(id); err == nil && r.encode() != id {
			t.Errorf("%q is written as %q", id, r.encode())
		}
		r, err := parseVolumeID(id)
		if err != nil {
			return
		}
		if r.encode() != id {
			t.Errorf("%q is written as %q", id, r.encode())
		}
		for part := range strings.SplitSeq(r.SubDir, "/") {
			if part == "" || part == "." || part == ".." || strings.HasPrefix(part, storeName) {
				t.Errorf("%q leads to %q", id, r.SubDir)
			}
		}
		if source := r.source(r.SubDir); len(source) <= len(r.source("")) || !strings.HasPrefix(source, r.source("")) {
			t.Errorf("%q leads to %q", id, source)
		}
	})
}
