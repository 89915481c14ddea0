package filepool

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
)

// A node plugin, which is root, comes first to the pool of a controller that is not.
func TestPoolKeepsItsOwner(t *testing.T) {
	gate.Root(t)
	const uid = 65532
	dir := t.TempDir()
	if err := os.Chown(dir, uid, uid); err != nil {
		t.Fatal(err)
	}
	p, err := initPool(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.RegisterNode("node", 3, nil); err != nil {
		t.Fatal(err)
	}
	found := 0
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if s := info.Sys().(*syscall.Stat_t); s.Uid != uid || s.Gid != uid {
			t.Errorf("%s is %d:%d's", path, s.Uid, s.Gid)
		}
		found++
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if found < 5 { // the pool, its marker, volumes, nodes, and the node's record
		t.Errorf("only %d files", found)
	}
}
