package filepool

import (
	"os"
	"path/filepath"
	"testing"
)

// What snapshots share is known where the file system shares blocks, and is not read.
func TestSharedBlocks(t *testing.T) {
	for _, fsType := range []string{"xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "pool")
			mountPool(t, dir, fsType)
			b := openBackend(t, dir, nil)
			t.Cleanup(func() { closeBackend(t, b) })
			if !b.reflinks() {
				t.Fatal("the file system shares no blocks")
			}
			v := filled(t, b, "a")
			base := mustSnap(t, b, "base", v.ID)
			writeAt(t, b.imageOf(v.ID), "changed", 0)
			target := mustSnap(t, b, "target", v.ID)
			f, err := os.Open(b.imageOf(base.ID))
			must(t, err)
			defer f.Close()
			g, err := os.Open(b.imageOf(target.ID))
			must(t, err)
			defer g.Close()
			sh, shared, other := newSharing(f, g), 0, 0
			must(t, allocatedBlocks(t.Context(), f, 0, gib, &merger{each: func(at, size int64) error {
				if sh.until(at) > at {
					shared++
				} else {
					other++
				}
				return nil
			}}))
			if shared == 0 || other == 0 {
				t.Errorf("%d ranges are known to be shared, %d are not", shared, other)
			}
		})
	}
}
