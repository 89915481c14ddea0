package share

import (
	"fmt"
	"strings"
	"testing"
)

func TestVolumeID(t *testing.T) {
	for _, id := range []string{
		"vol1#nas#/#pvc-1#ABCDEFGHIJKLM#delete",
		"vol1#nas.example.com#/srv/volumes#ns/claim#ABCDEFGHIJKLM#retain",
		"vol1#10.0.0.7#/srv#a b/ü#ABCDEFGHIJKLM#archive#port=2050,vers=4.1",
		"vol1#fd00::7#/srv#...#ABCDEFGHIJKLM#delete",
		"vol1d#nas#/srv#0123456789abcdef0123456789abcdef#ABCDEFGHIJKLM#archive#port=2050",
	} {
		r, err := ParseVolumeID(id)
		if err != nil || r.Encode() != id {
			t.Errorf("%s: %+v, %v", id, r, err)
		}
	}
	if r, _ := ParseVolumeID("vol1#fd00::7#/srv#a/b#ABCDEFGHIJKLM#delete"); r.Source(r.SubDir) != "[fd00::7]:/srv/a/b" {
		t.Errorf("mounted is %s", r.Source(r.SubDir))
	}
}

func TestIsAt(t *testing.T) {
	for _, id := range []string{"vol1#fd00::7#%s#a/b#ABCDEFGHIJKLM#delete", "vol1d#fd00::7#%s#" + Digest("a/b") + "#ABCDEFGHIJKLM#delete"} {
		for share, prefix := range map[string]string{"/": "[fd00::7]:/", "/srv": "[fd00::7]:/srv/"} {
			r, err := ParseVolumeID(fmt.Sprintf(id, share))
			if err != nil || !r.IsAt(prefix+"a/b") {
				t.Errorf("%s is not at %sa/b (%v)", r.Encode(), prefix, err)
			}
			for _, source := range []string{"", prefix, prefix + "a", prefix + "a/b/", prefix + "a/b/c", prefix + "/a/b", prefix + "b/a/b", "[fd00::8]" + prefix[9:] + "a/b", "nas:/srva/b"} {
				if r.IsAt(source) {
					t.Errorf("%s is at %s", r.Encode(), source)
				}
			}
		}
	}
}

// A text that is not exactly in the form that the driver writes is not an ID
// (kubernetes-csi/csi-driver-nfs#1241: an empty part meant the share).
func TestBadVolumeID(t *testing.T) {
	for _, id := range []string{
		"", "vol-1", "nas#srv#pvc-1##", "vol2#nas#/srv#a#N#delete", "snap1#nas#/srv#a#N#delete",
		"vol1#nas#/srv#a", "vol1#nas#/srv#a#N#delete#", "vol1#nas#/srv#a#N#delete##", "vol1#nas#/srv#a#N#delete#port=1#x",
		"vol1##/srv#a#N#delete", "vol1#nas##a#N#delete", "vol1#nas#/srv##N#delete", "vol1#nas#/srv#a#N#", "vol1#nas#/srv#a#N#erase",
		"vol1#nas#srv#a#N#delete", "vol1#nas#/srv/#a#N#delete", "vol1#nas#/srv//x#a#N#delete", "vol1#nas#/srv/../x#a#N#delete", "vol1#nas#/..#a#N#delete",
		"vol1#nas#/srv#/#N#delete", "vol1#nas#/srv#/etc#N#delete", "vol1#nas#/srv#.#N#delete", "vol1#nas#/srv#..#N#delete", "vol1#nas#/srv#a/../b#N#delete",
		"vol1#nas#/srv#../b#N#delete", "vol1#nas#/srv#a/#N#delete", "vol1#nas#/srv#a//b#N#delete", "vol1#nas#/srv#./a#N#delete", `vol1#nas#/srv#..\b#N#delete`,
		"vol1#nas#/srv#.csikit-nfs#N#delete", "vol1#nas#/srv#.csikit-nfs/trash#N#delete", "vol1#nas#/srv#a/.csikit-nfs2#N#delete",
		"vol1#nas#/srv#a#delete", "vol1#nas#/srv#a##delete", "vol1#nas#/srv#a#ABCDEFGHIJKL#delete", "vol1#nas#/srv#a#ABCDEFGHIJKLMN#delete",
		"vol1#nas#/srv#a#ABCDEFGHIJKLm#delete", "vol1#nas#/srv#a#ABCDEFGHIJKL0#delete", "vol1#nas#/srv#a#delete#ABCDEFGHIJKLM",
		"vol1d#nas#/srv#a#N#delete", "vol1d#nas#/srv##N#delete", "vol1d#nas#/srv#0123456789abcdef0123456789abcdeF#N#delete", "vol1d#nas#/srv#../..#N#delete",
		"vol1#nas#/srv#a\x00b#N#delete", "vol1#nas#/srv#a\nb#N#delete", "vol1#nas#/srv#a\x1bb#N#delete", "vol1#nas#/srv#\xff#N#delete", "vol1#nas#/srv#a\u202eb#N#delete",
		"vol1#NAS#/srv#a#N#delete", "vol1#-o#/srv#a#N#delete", "vol1#nas/x#/srv#a#N#delete", "vol1#nas,x#/srv#a#N#delete", "vol1#[fd00::7]#/srv#a#N#delete",
		"vol1#FD00::7#/srv#a#N#delete", "vol1#fe80::1%eth0#/srv#a#N#delete", "vol1#010.0.0.1/8#/srv#a#N#delete",
		"vol1#nas#/srv#a#N#delete#vers=4.1,port=1", "vol1#nas#/srv#a#N#delete#port=1,port=1", "vol1#nas#/srv#a#N#delete#port=1,port=2",
		"vol1#nas#/srv#a#N#delete#soft", "vol1#nas#/srv#a#N#delete#addr=1.2.3.4", "vol1#nas#/srv#a#N#delete#port=", "vol1#nas#/srv#a#N#delete#port=1,",
		"vol1#nas#/srv#a#N#delete#nfsvers=3", "vol1#nas#/srv#" + strings.Repeat("a", 120) + "#N#delete",
	} {
		id = strings.Replace(id, "#N#", "#ABCDEFGHIJKLM#", 1)
		if r, err := ParseVolumeID(id); err == nil {
			t.Errorf("%q is taken for %+v", id, r)
		}
	}
}

func TestSnapshotID(t *testing.T) {
	const key, nonce = "0123456789abcdef0123456789abcdef", "#ABCDEFGHIJKLM"
	for _, id := range []string{"snap1#nas#/srv#" + key + nonce, "snap1#nas#/srv#" + key + nonce + "#vers=3"} {
		if r, err := ParseSnapshotID(id); err != nil || r.Encode() != id {
			t.Errorf("%s: %+v, %v", id, r, err)
		}
	}
	for _, id := range []string{
		"", "snap1#nas#/srv#", "snap1#nas#/srv#" + nonce, "snap1#nas#/srv#../../x" + nonce, "snap1#nas#/srv#" + key + "/x" + nonce,
		"snap1#nas#/srv#" + key, "snap1#nas#/srv#" + key + "#", "snap1#nas#/srv#" + key + "##vers=3", "snap1#nas#/srv#" + key + "#../../../../etc",
		"snap1#nas#/srv#" + key + nonce + "#", "vol1#nas#/srv#" + key + nonce,
	} {
		if r, err := ParseSnapshotID(id); err == nil {
			t.Errorf("%q is taken for %+v", id, r)
		}
	}
}

func FuzzVolumeID(f *testing.F) {
	f.Add("vol1#nas.example.com#/srv/volumes#ns/claim#ABCDEFGHIJKLM#retain#port=2050,vers=4.1")
	f.Add("vol1#fd00::7#/#a#ABCDEFGHIJKLM#delete")
	f.Add("vol1d#nas#/srv#0123456789abcdef0123456789abcdef#ABCDEFGHIJKLM#archive")
	f.Add("snap1#nas#/srv#0123456789abcdef0123456789abcdef#ABCDEFGHIJKLM#sec=krb5")
	f.Fuzz(func(t *testing.T, id string) {
		if r, err := ParseSnapshotID(id); err == nil && r.Encode() != id {
			t.Errorf("%q is written as %q", id, r.Encode())
		}
		r, err := ParseVolumeID(id)
		if err != nil {
			return
		}
		if r.Encode() != id {
			t.Errorf("%q is written as %q", id, r.Encode())
		}
		if NonceOf(id) != r.Nonce || len(r.Nonce) != nonceLength {
			t.Errorf("%q has the nonce %q", id, r.Nonce)
		}
		if r.SubDir == "" {
			if r.Digest == "" {
				t.Errorf("%q leads nowhere", id)
			}
			return
		}
		for part := range strings.SplitSeq(r.SubDir, "/") {
			if part == "" || part == "." || part == ".." || strings.HasPrefix(part, Reserved) {
				t.Errorf("%q leads to %q", id, r.SubDir)
			}
		}
		if source := r.Source(r.SubDir); len(source) <= len(r.Source("")) || !strings.HasPrefix(source, r.Source("")) {
			t.Errorf("%q leads to %q", id, source)
		}
	})
}
