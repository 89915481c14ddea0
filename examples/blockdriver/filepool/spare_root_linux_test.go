package filepool

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/examples/blockdriver/storage"
	"golang.org/x/sys/unix"
)

// fillDisk takes all that is free beside the pool.
func fillDisk(t *testing.T, file string) {
	t.Helper()
	f, err := os.Create(file)
	must(t, err)
	defer f.Close()
	at := int64(0)
	for size := int64(gib); size >= 4<<10; {
		if err := unix.Fallocate(int(f.Fd()), 0, at, size); err != nil {
			size /= 2
		} else {
			at += size
		}
	}
	for i := range 10_000 { // and what is left for a small file
		if os.WriteFile(fmt.Sprint(file, i), []byte("x"), 0o600) != nil {
			return
		}
	}
	t.Fatal("the disk does not get full")
}

// Volumes have filled the pool's disk to the last block: they can be taken off their
// nodes, driver and node plugin start, and when there is room again all works as before.
func TestPoolFullToTheLastBlock(t *testing.T) {
	for _, fsType := range []string{"xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "disk")
			mountPool(t, dir, fsType)
			b := openBackend(t, dir, nil)
			mustRegister(t, b.pool, "n1")
			volumes := []volume{}
			for i := range 10 {
				v := mustCreate(t, b, spec(fmt.Sprint(i)))
				_, err := b.AttachVolume(t.Context(), v.ID, storage.Attachment{NodeID: "n1"})
				must(t, err)
				volumes = append(volumes, v)
			}
			full := filepath.Join(dir, "full")
			must(t, os.Mkdir(full, 0o700))
			fillDisk(t, filepath.Join(full, "f"))
			for _, v := range volumes[1:] {
				must(t, b.DetachVolume(t.Context(), v.ID, "n1"))
			}
			_, err := b.AttachVolume(t.Context(), volumes[1].ID, storage.Attachment{NodeID: "n1"})
			must(t, err)

			b = reopen(t, b)
			p, err := openPool(dir)
			must(t, err)
			must(t, p.lockNode("n1", b.log))
			mustRegister(t, p, "n1")
			must(t, p.Close())
			// Without spare room a start cannot even try whether blocks are shared.
			closeBackend(t, b)
			must(t, os.Remove(filepath.Join(dir, spareName)))
			fillDisk(t, filepath.Join(full, "g"))
			b = openBackend(t, dir, nil)
			must(t, os.RemoveAll(full))
			mustSnap(t, b, "of a volume in use", volumes[0].ID)
			mustCreate(t, b, spec("new"))
			if info, err := b.root.Stat(spareName); err != nil || info.Size() != spareSize {
				t.Errorf("the spare room was not made up for: %v, %v", info, err)
			}
		})
	}
}
