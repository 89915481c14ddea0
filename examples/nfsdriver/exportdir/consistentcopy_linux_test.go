package exportdir

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/examples/nfsdriver/share"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

func TestConsistentCopy(t *testing.T) {
	src := t.TempDir()
	makeTree(t, src, 3, 1<<20)
	dst := t.TempDir()
	checkConsistentCopy(t, dst, src, src)
	compareTrees(t, describe(t, dst), describe(t, src))
}

// checkConsistentCopy makes a consistent copy: a change during a pass is copied by the
// next one, even if size and mtime are the same. The source is changed in dir, its path
// on the server.
func checkConsistentCopy(t *testing.T, dst, src, dir string) {
	t.Helper()
	in := func(name string) string { return filepath.Join(dir, name) }
	old, notRead := time.Unix(1, 0), time.Now().Add(time.Hour) // an atime that relatime does not update
	write := func(name, text string) {                         // as if nothing had happened
		must(t, errors.Join(os.WriteFile(in(name), []byte(text), 0o600), os.Chtimes(in(name), notRead, old)))
	}
	must(t, os.MkdirAll(in("quiet/deep"), 0o755))
	write("written", "before")
	write("quiet/deep/written", "before")
	write("quiet/deep/second", "before")
	write("quiet/replaced", "before")
	must(t, errors.Join(os.Mkdir(in("dir"), 0o755), os.WriteFile(in("dir/moved"), []byte("moved"), 0o600), os.WriteFile(in("gone"), nil, 0o600)))
	between := []func(){
		func() {
			write("written", "behind")
			write("quiet/deep/written", "behind")
			write("replacing", "behind")
			must(t, os.Rename(in("replacing"), in("quiet/replaced")))
		},
		func() {
			write("quiet/deep/second", "behind") // which no pass has read since it was copied
			must(t, errors.Join(os.Rename(in("dir"), in("renamed")), os.Remove(in("gone")), os.Link(in("written"), in("linked"))))
		},
	}
	passes, of := 0, origins{}
	_, err := copyConsistent(time.Time{}, func() (time.Time, error) { return touched(t, dst), nil }, func(since time.Time) (saw changes, err error) {
		saw, err = copyPass(t, dst, src, since, of, func(int64, int64) {})
		if passes < len(between) {
			between[passes]()
		}
		passes++
		return saw, err
	})
	must(t, err)
	if passes < len(between)+2 { // one copies the last change, and one finds none
		t.Errorf("%d passes", passes)
	}
}

// A source that always changes is refused, and the next attempt, during which it may not
// change, does not copy everything again.
func TestCopyInUse(t *testing.T) {
	c, shareDir := newLocalController(t)
	v := c.mustCreate("pvc-1")
	dir := filepath.Join(shareDir, "pvc-1")
	large := filepath.Join(dir, "busy", "below", "large")
	must(t, errors.Join(os.MkdirAll(filepath.Dir(large), 0o755), os.WriteFile(large, make([]byte, 1<<20), 0o600)))
	source, err := os.Stat(large)
	must(t, err)
	for now := source; changedAt(now).Before(settled(changedAt(source))); { // or it may have changed while it was copied
		now, err = os.Stat(dir)
		must(t, errors.Join(err, os.Chtimes(dir, time.Now(), time.Now())))
	}
	temp := tempOf("snapshot", "snap", "", v.GetVolumeId())
	attempt := func(inUse bool) error {
		b := c.backend()
		return b.exports.Use(testExport, func(s *store) error {
			must(t, s.open())
			n := 0
			_, _, err := s.fill(temp, v.GetVolumeId(), inUse, share.Access{}, b.exports, func(int64, int64) {
				n++
				log := filepath.Join(dir, "busy", "log")
				must(t, errors.Join(ignoreMissing(os.Remove(log)), os.WriteFile(log, fmt.Append(nil, n), 0o600)))
			})
			if err != nil {
				err = b.discard(s, temp, err)
			}
			return err
		})
	}
	refused(t, fail("create snapshot", "snap", "%w", attempt(false)), codes.FailedPrecondition, `"; stop the writers, or set copyInUse=true`)
	kept := filepath.Join(shareDir, storeName, temp)
	info, err := os.Stat(kept)
	must(t, err)
	if age := time.Since(info.ModTime()); age < abandonedAfter-2*time.Hour || age > abandonedAfter {
		t.Errorf("the copy is %v old for those who tidy up", age)
	}
	first, err := os.Stat(filepath.Join(kept, "data", "busy", "below", "large"))
	must(t, err)
	must(t, attempt(true))
	again, err := os.Stat(filepath.Join(kept, "data", "busy", "below", "large"))
	must(t, err)
	if !os.SameFile(first, again) {
		t.Error("the retry copied again what had not changed")
	}

	id, err := c.snapshot("snap", v.GetVolumeId())
	must(t, err)
	got := describe(t, filepath.Join(shareDir, storeName, dirSnapshots, share.Digest("snap")))
	compareTrees(t, got, describe(t, dir))
	must(t, errors.Join(c.deleteSnapshot(id), c.delete(v.GetVolumeId())))
	wantShare(t, shareDir)
}

// A partial copy that is not requested again is deleted after an hour.
func TestCopyInUseForgotten(t *testing.T) {
	c, shareDir := newLocalController(t)
	v := c.mustCreate("pvc-1")
	synctest.Test(t, func(t *testing.T) {
		mounts := localDirs(filepath.Dir(shareDir))
		b := newBackend(testServers(), newExports(mounts, time.Second, slog.New(slog.DiscardHandler)), nil, slog.New(slog.DiscardHandler))
		b.server = withoutProbe
		temp := tempOf("snapshot", "snap", "", v.GetVolumeId())
		must(t, b.exports.Use(testExport, func(s *store) error {
			must(t, s.openLocked())
			_, _, err := s.fill(temp, v.GetVolumeId(), false, share.Access{}, b.exports, func(int64, int64) {})
			if err == nil { // what waits here takes no time, and the file system's clock does not run with it
				err = storage.ErrInUse
			}
			if err := b.discard(s, temp, err); !errors.Is(err, storage.ErrInUse) {
				t.Error(err)
			}
			return nil
		}))
		there := func() bool {
			_, err := os.Stat(filepath.Join(shareDir, storeName, temp))
			return err == nil
		}
		time.Sleep(59 * time.Minute)
		synctest.Wait()
		if !there() {
			t.Error("the copy is gone too early")
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if there() {
			t.Error("the copy stays for ever")
		}
		b.Close()
		b.exports.Close()
	})
}

// The parameter of the class reaches the copy of a snapshot and of a clone. On a slow
// machine the writer may not write during a pass, and both copies succeed regardless of
// the parameter.
func TestCopyInUseReachesTheCopy(t *testing.T) {
	c, shareDir := newLocalController(t)
	v := c.mustCreate("pvc-1")
	end, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		for n := 0; err == nil; n++ {
			select {
			case <-end:
				ended <- nil
				return
			default:
				err = os.WriteFile(filepath.Join(shareDir, "pvc-1", "log"), fmt.Append(nil, n), 0o600)
			}
		}
		ended <- err
	}()
	r, err := c.controllerServer().CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
		Name: "snap", SourceVolumeId: v.GetVolumeId(), Parameters: map[string]string{share.ParamCopyInUse: "true"},
	})
	clone, err2 := c.create("clone", "volume", v.GetVolumeId(), share.ParamCopyInUse, "true")
	close(end)
	must(t, errors.Join(err, err2, <-ended))
	must(t, errors.Join(c.deleteSnapshot(r.GetSnapshot().GetSnapshotId()), c.delete(clone.GetVolumeId()), c.delete(v.GetVolumeId())))
	wantShare(t, shareDir)
}

// passes makes a consistent copy, and calls a function before each step that it counts:
// the steps of the first pass, then those of the second, and so on.
func passes(t *testing.T, dst, src string, each func(pass, step int)) error {
	t.Helper()
	pass := 0
	of := origins{}
	_, err := copyConsistent(time.Time{}, func() (time.Time, error) { return touched(t, dst), nil }, func(since time.Time) (saw changes, err error) {
		pass++
		step := 0
		return copyPass(t, dst, src, since, of, func(int64, int64) {
			step++
			each(pass, step)
		})
	})
	return err
}

// copyPass runs one pass.
func copyPass(t *testing.T, dst, src string, since time.Time, of origins, progress func(files, bytes int64)) (changes, error) {
	t.Helper()
	to, err := os.Open(dst)
	must(t, err)
	defer to.Close()
	from, err := os.Open(src)
	must(t, err)
	defer from.Close()
	return copyTree(to, from, since, of, progress)
}

// touched returns the current time by the clock that ctimes are taken from.
func touched(t *testing.T, name string) time.Time {
	t.Helper()
	old := time.Unix(1, 0)
	must(t, os.Chtimes(name, old, old))
	info, err := os.Stat(name)
	must(t, err)
	return changedAt(info)
}

// settle waits until earlier changes can be distinguished from new ones.
func settle(t *testing.T, dir string) {
	t.Helper()
	for last := settled(touched(t, dir)); touched(t, dir).Before(last); {
	}
}

// alike creates directories with one file each: different content, but the same size and
// mtime, as in unpacked and reproducible trees. It returns their names in the order in
// which they are copied from src, which is dir on the server.
func alike(t *testing.T, src, dir string, n int) []string {
	t.Helper()
	old, notRead := time.Unix(1, 0), time.Now().Add(time.Hour) // not updated with relatime
	for i := range n {
		name := filepath.Join(dir, fmt.Sprint("dir", i), "deep", "file")
		must(t, errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, fmt.Append(nil, "content ", i), 0o600), os.Chtimes(name, notRead, old)))
	}
	f, err := os.Open(src)
	must(t, err)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	must(t, err)
	return names
}

// Directories are changed during a pass.
var whileCopied = map[string]func(t *testing.T, pass, step int, in func(int) string){
	"moved to where the pass was": func(t *testing.T, pass, step int, in func(int) string) {
		if pass == 2 && step == 2 { // the first file, and its directory
			must(t, os.Rename(in(2), filepath.Join(in(0), "moved")))
		}
	},
	"file moved to where the pass was": func(t *testing.T, pass, step int, in func(int) string) {
		if pass == 2 && step == 2 {
			must(t, os.Rename(filepath.Join(in(2), "deep", "file"), filepath.Join(in(0), "moved")))
		}
	},
	"swapped in the first pass": func(t *testing.T, pass, step int, in func(int) string) {
		if pass == 1 && step == 3 {
			must(t, unix.Renameat2(unix.AT_FDCWD, in(0), unix.AT_FDCWD, in(2), unix.RENAME_EXCHANGE))
		}
	},
	"swapped in the second pass": func(t *testing.T, pass, step int, in func(int) string) {
		if pass == 2 && step == 2 {
			must(t, unix.Renameat2(unix.AT_FDCWD, in(0), unix.AT_FDCWD, in(2), unix.RENAME_EXCHANGE))
		}
	},
	"replaced": func(t *testing.T, pass, step int, in func(int) string) {
		if pass == 2 && step == 2 {
			must(t, errors.Join(os.Rename(in(0), in(0)+".old"), os.Rename(in(1), in(0))))
		}
	},
	"removed while in it": func(t *testing.T, pass, step int, in func(int) string) {
		if step == 1 && pass <= 2 {
			must(t, os.RemoveAll(in(pass-1)))
		}
	},
}

func TestConsistentCopyDirectories(t *testing.T) {
	for name, change := range whileCopied {
		t.Run(name, func(t *testing.T) {
			src := t.TempDir()
			dst := t.TempDir()
			checkConsistentCopyDirectories(t, dst, dst, src, src, change)
		})
	}
}

// checkConsistentCopyDirectories changes the source, which is dir on the server, while
// it is copied to dst, which is copied on the server.
func checkConsistentCopyDirectories(t *testing.T, dst, copied, src, dir string, change func(t *testing.T, pass, step int, in func(int) string)) {
	t.Helper()
	names := alike(t, src, dir, 4)
	settle(t, dst)
	must(t, passes(t, dst, src, func(pass, step int) {
		change(t, pass, step, func(n int) string { return filepath.Join(dir, names[n]) })
	}))
	compareTrees(t, describe(t, copied), describe(t, dir))
}
