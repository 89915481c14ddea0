//go:build linux

package images

import (
	"os"
	"path/filepath"
	"testing"
)

// Where Debian does not serve a version in the list any more, Current takes the one that it
// serves; and what Renew writes is a list that is read again.
func TestCurrent(t *testing.T) {
	b := Builder{Root: t.TempDir(), Cache: t.TempDir(), Log: t.Logf}
	name := b.list("nfsdriver", "arm64")
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	gone := list{wanted: []string{"nfs-common", baseFiles}, snapshot: "20200101T000000Z", packages: []debianPackage{
		{"nfs-common", "0.1", "0000", "debian/pool/main/n/nfs-utils/nfs-common_0.1_arm64.deb"},
	}}
	if err := gone.write(name); err != nil {
		t.Fatal(err)
	}
	s := stage{name: "nfsdriver", packages: []string{"nfs-common"}}
	if _, _, err := b.base(t.Context(), "bookworm", "nfsdriver", "arm64", s); err == nil {
		t.Error("a version that is not served was found")
	}
	b.Current = true
	tree, l, err := b.base(t.Context(), "bookworm", "nfsdriver", "arm64", s)
	if err != nil || !isELF(tree["usr/sbin/mount.nfs"].Data) || len(l.packages) < 10 {
		t.Errorf("%d files, %d packages: %v", len(tree), len(l.packages), err)
	}
	if err := l.write(name); err != nil {
		t.Fatal(err)
	}
	b.Current = false // with what is in the cache
	again, _, err := b.base(t.Context(), "bookworm", "nfsdriver", "arm64", s)
	if err != nil || len(again) != len(tree) {
		t.Errorf("by the list that was written: %d files, want %d: %v", len(again), len(tree), err)
	}
}
