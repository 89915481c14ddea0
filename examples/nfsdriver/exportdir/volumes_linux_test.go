package exportdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/breaker"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/nfsdriver/driver"
	"github.com/csikit/csikit/examples/nfsdriver/share"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

var testExport = share.Export{Server: "nas", Share: "/srv"}

func testServers() *breaker.Group { return &breaker.Group{Timeout: 30 * time.Second} }

// newLocalController returns a controller on a directory, without a gRPC server, for calls by
// c. It needs no privilege.
func newLocalController(t *testing.T, known ...share.Export) (c *co, shareDir string) {
	t.Helper()
	dir := t.TempDir()
	shareDir = filepath.Join(dir, "srv")
	must(t, os.Mkdir(shareDir, 0o755))
	must(t, os.Mkdir(filepath.Join(dir, "other"), 0o755))
	log := slog.New(slog.NewTextHandler(testLog{T: t}, nil))
	exports := newExports(localDirs(dir), 0, log)
	t.Cleanup(exports.Close)
	b := newBackend(testServers(), exports, known, log)
	b.server = withoutProbe
	t.Cleanup(func() { // what runs in the background uses the directory
		b.Close()
		for b.cleans() > 0 {
			time.Sleep(time.Millisecond)
		}
	})
	c = &co{t: t, class: map[string]string{share.ParamServer: "nas", share.ParamShare: "/srv"}, controller: direct{to: driver.NewController((&Provider{known: known}).typed(b))}, storage: b, timeout: time.Minute}
	return c, shareDir
}

func (b *backend) cleans() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.cleaning)
}

func wantMode(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	must(t, err)
	if info.Mode() != mode {
		t.Errorf("%s has mode %v, want %v", path, info.Mode(), mode)
	}
}

func TestCreateVolume(t *testing.T) {
	c, shareDir := newLocalController(t)
	v := c.mustCreate("pvc-1")
	wantMode(t, filepath.Join(shareDir, "pvc-1"), fs.ModeDir|0o777)
	must(t, os.WriteFile(filepath.Join(shareDir, "pvc-1", "file"), nil, 0o600))
	if again := c.mustCreate("pvc-1"); again.GetVolumeId() != v.GetVolumeId() {
		t.Errorf("created again it is %v, not %v", again, v)
	}
	group := fmt.Sprint(os.Getgid())
	c.mustCreate("pvc-2", share.ParamSubDir, "team/${pv.metadata.name}", "csi.storage.k8s.io/pv/name", "pvc-2", share.ParamPermissions, "2750", share.ParamGroup, group)
	wantMode(t, filepath.Join(shareDir, "team", "pvc-2"), fs.ModeDir|fs.ModeSetgid|0o750)
	wantMode(t, filepath.Join(shareDir, storeName), fs.ModeDir|0o700)

	for _, tt := range []struct {
		name  string
		pairs []string
		words string
	}{
		{"pvc-1", []string{share.ParamOnDelete, "retain"}, `ID`},
		{"pvc-1", []string{share.ParamPermissions, "0700"}, "mountPermissions"},
		{"pvc-1", []string{share.ParamSubDir, "elsewhere"}, `parameters["subDir"]`},
		{"pvc-1", []string{"volume", v.GetVolumeId()}, "source"},
		{"pvc-3", []string{share.ParamSubDir, "pvc-1"}, `name: the volume has "pvc-1"`},
		{"pvc-3", []string{share.ParamSubDir, "pvc-1/inside"}, "inside volume"},
		{"pvc-3", []string{share.ParamSubDir, "team"}, "not a volume of this driver"},
		{"pvc-3", []string{share.ParamSubDir, "team/pvc-2", share.ParamOnDelete, "retain"}, "name"},
	} {
		_, err := c.create(tt.name, tt.pairs...)
		refused(t, err, codes.AlreadyExists, tt.words)
	}
	_, err := c.create("pvc-3", "volume", "vol1#nas#/srv#none#ABCDEFGHIJKLM#delete")
	refused(t, err, codes.NotFound, "none")
	_, err = c.create("pvc-3", "volume", "vol1#other#/srv#pvc-1#ABCDEFGHIJKLM#delete")
	refused(t, err, codes.InvalidArgument, "copies between servers")
	_, err = c.create("pvc-3", share.ParamShare, "/no-such-share")
	refused(t, err, codes.FailedPrecondition, "/no-such-share")
	wantShare(t, shareDir, "pvc-1", "team")
}

// Files that the driver did not create are not a volume
// (kubernetes-csi/csi-driver-nfs#1241).
func TestForeignFilesAreSafe(t *testing.T) {
	c, shareDir := newLocalController(t)
	outside := filepath.Join(filepath.Dir(shareDir), "outside")
	for _, dir := range []string{outside, filepath.Join(shareDir, "mine")} {
		must(t, os.MkdirAll(dir, 0o755))
		must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	}
	must(t, os.Symlink(outside, filepath.Join(shareDir, "absolute")))
	must(t, os.Symlink("../outside", filepath.Join(shareDir, "relative")))
	must(t, os.Symlink("mine", filepath.Join(shareDir, "link")))
	for _, subDir := range []string{"mine", "absolute", "relative", "link"} {
		_, err := c.create("pvc", share.ParamSubDir, subDir)
		refused(t, err, codes.AlreadyExists, "not a volume of this driver")
	}
	for _, subDir := range []string{"absolute/x", "relative/x"} {
		if _, err := c.create("pvc", share.ParamSubDir, subDir); err == nil {
			t.Errorf("%s leads out of the share", subDir)
		}
	}
	// IDs that refer to them, but not to a volume.
	for _, subDir := range []string{"mine", "absolute", "relative", "link", "absolute/file", "mine/file"} {
		for _, how := range []string{"delete", "archive"} {
			must(t, c.delete("vol1#nas#/srv#"+subDir+"#ABCDEFGHIJKLM#"+how))
		}
	}
	for _, id := range []string{"vol1#nas#/srv##ABCDEFGHIJKLM#delete", "vol1#nas#/srv#..#ABCDEFGHIJKLM#delete", "vol1#nas#/srv#a/../..#ABCDEFGHIJKLM#delete", "vol1#nas#/#srv#ABCDEFGHIJKLM#delete", "nas#srv#mine##", "x"} {
		must(t, c.delete(id))
		must(t, c.deleteSnapshot(id))
	}
	for _, file := range []string{outside + "/file", shareDir + "/mine/file", shareDir + "/absolute/file"} {
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	}
}

// kubernetes-csi/csi-driver-nfs#855: deleting a supposedly empty parent deleted all
// other volumes in it.
func TestDeleteVolume(t *testing.T) {
	c, shareDir := newLocalController(t)
	write := func(subDir string) {
		t.Helper()
		must(t, os.MkdirAll(filepath.Join(shareDir, subDir, "a/b"), 0o755))
		must(t, os.WriteFile(filepath.Join(shareDir, subDir, "a/b/file"), []byte(subDir), 0o400))
		must(t, os.Chmod(filepath.Join(shareDir, subDir, "a/b"), 0o500))
	}
	del := c.mustCreate("del", share.ParamSubDir, "x/y/del")
	ret := c.mustCreate("ret", share.ParamOnDelete, "retain")
	arc := c.mustCreate("arc", share.ParamOnDelete, "archive", share.ParamSubDir, "x/arc")
	for _, subDir := range []string{"x/y/del", "ret", "x/arc"} {
		write(subDir)
	}
	must(t, os.Symlink("/etc", filepath.Join(shareDir, "x/y/del/etc"))) // is not followed

	for _, id := range []string{
		strings.Replace(ret.GetVolumeId(), "#retain", "#delete", 1),
		strings.Replace(arc.GetVolumeId(), "#archive", "#delete", 1),
		del.GetVolumeId() + "#port=2050",
	} {
		refused(t, c.delete(id), codes.FailedPrecondition, "nothing is changed")
	}
	for _, v := range []*csi.Volume{del, ret, arc, del, ret, arc} {
		must(t, c.delete(v.GetVolumeId()))
	}
	wantShareFiles(t, shareDir, "ret/a/b/file", "x/archived-arc/a/b/file")
	if _, err := os.Lstat(filepath.Join(shareDir, "x/y")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the parent that is empty stays: %v", err)
	}
	// A retained directory is no longer a volume, and an archived one is kept.
	_, err := c.create("ret", share.ParamOnDelete, "retain")
	refused(t, err, codes.AlreadyExists, "not a volume of this driver")
	arc = c.mustCreate("arc", share.ParamOnDelete, "archive", share.ParamSubDir, "x/arc")
	write("x/arc")
	must(t, c.delete(arc.GetVolumeId()))
	wantShareFiles(t, shareDir, "ret/a/b/file", "x/archived-arc/a/b/file", "x/archived-arc.2/a/b/file")
	must(t, os.Chmod(filepath.Join(shareDir, "ret/a/b"), 0o700))
	must(t, os.Chmod(filepath.Join(shareDir, "x/archived-arc/a/b"), 0o700))
	must(t, os.Chmod(filepath.Join(shareDir, "x/archived-arc.2/a/b"), 0o700))
}

// wantShareFiles compares all regular files outside the driver's directory.
func wantShareFiles(t *testing.T, shareDir string, want ...string) {
	t.Helper()
	left := map[string]bool{}
	for _, name := range want {
		left[name] = true
	}
	must(t, filepath.WalkDir(shareDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(shareDir, path)
		if rel == storeName {
			return fs.SkipDir
		}
		if d.Type().IsRegular() && !left[rel] {
			t.Errorf("%s is there", rel)
		}
		delete(left, rel)
		return nil
	}))
	for name := range left {
		t.Errorf("%s is not there", name)
	}
}

// A directory in place of the one that the driver created is not deleted.
func TestReplacedDirectory(t *testing.T) {
	c, shareDir := newLocalController(t)
	v := c.mustCreate("pvc-1")
	dir := filepath.Join(shareDir, "pvc-1")
	must(t, os.Rename(dir, dir+".old"))
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	refused(t, c.delete(v.GetVolumeId()), codes.FailedPrecondition, "is not the directory that the driver created")
	_, err := c.create("pvc-1")
	refused(t, err, codes.FailedPrecondition, "is not the directory that the driver created")
	_, err = c.snapshot("snap", v.GetVolumeId())
	refused(t, err, codes.FailedPrecondition, "is not the directory that the driver created")
	must(t, os.RemoveAll(dir))
	must(t, os.Symlink("pvc-1.old", dir))
	refused(t, c.delete(v.GetVolumeId()), codes.DataLoss, "is not a directory")
	must(t, os.Remove(dir))
	_, err = c.create("pvc-1")
	refused(t, err, codes.DataLoss, "is missing")
	must(t, c.delete(v.GetVolumeId()))
	must(t, os.Remove(dir+".old"))
	wantShare(t, shareDir)
}

func TestDamagedStore(t *testing.T) {
	c, shareDir := newLocalController(t)
	own := filepath.Join(shareDir, storeName)
	must(t, os.Mkdir(own, 0o755))
	must(t, os.WriteFile(filepath.Join(own, "foreign"), nil, 0o600))
	_, err := c.create("pvc-1")
	refused(t, err, codes.FailedPrecondition, "it is not the driver's")
	must(t, os.RemoveAll(own))
	must(t, os.Symlink("/tmp", own))
	_, err = c.create("pvc-1")
	refused(t, err, codes.DataLoss, "is not a directory")
	must(t, os.Remove(own))
	v := c.mustCreate("pvc-1")
	must(t, os.WriteFile(filepath.Join(own, dirVolumes, share.Digest("pvc-1")+extRecord), []byte("{"), 0o600))
	refused(t, c.delete(v.GetVolumeId()), codes.DataLoss, "restore it")
	must(t, os.Rename(filepath.Join(own, dirTrash), filepath.Join(shareDir, "t")))
	must(t, os.Symlink("../pvc-1", filepath.Join(own, dirTrash)))
	must(t, os.WriteFile(filepath.Join(shareDir, "pvc-1", "file"), nil, 0o600))
	refused(t, c.delete(v.GetVolumeId()), codes.DataLoss, "trash is not a directory")
	if _, err := os.Stat(filepath.Join(shareDir, "pvc-1", "file")); err != nil {
		t.Error(err)
	}
}

// Of many concurrent requests for one directory, one succeeds.
func TestConcurrentCreates(t *testing.T) {
	c, shareDir := newLocalController(t)
	var all sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for i := range 20 {
		all.Go(func() {
			_, err := c.create(fmt.Sprint("pvc-", i), share.ParamSubDir, "one")
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				made++
			} else {
				refused(t, err, codes.AlreadyExists, "")
			}
		})
	}
	all.Wait()
	if made != 1 {
		t.Errorf("%d volumes are in one place", made)
	}
	wantShare(t, shareDir, "one")
}

// Concurrent requests with one name and different parameters do not delete each other's
// results.
func TestConcurrentCreatesOfOneName(t *testing.T) {
	c, shareDir := newLocalController(t)
	for range 10 {
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				err := again(func() error {
					_, err := c.create("pvc", "size", fmt.Sprint(i+1))
					return err
				})
				if err != nil {
					refused(t, err, codes.AlreadyExists, "capacity")
				}
			})
		}
		all.Wait()
		wantShare(t, shareDir, "pvc")
		must(t, c.delete(c.mustCreate("pvc").GetVolumeId()))
		wantShare(t, shareDir)
	}
}

// A copy continues after its callers have returned, and the next request with its name
// may have other parameters, because the class was recreated: it does not use the same
// directory.
func TestOneCopyAtATime(t *testing.T) {
	c, shareDir := newLocalController(t)
	v := c.mustCreate("pvc-1")
	must(t, os.WriteFile(filepath.Join(shareDir, "pvc-1", "file"), []byte("text"), 0o600))
	began, end := make(chan bool, 1), make(chan bool)
	did := func(files, bytes int64) { // it goes no further than its first progress
		select {
		case began <- true:
		default:
		}
		<-end
	}
	spec := storage.VolumeSpec{Name: "pvc-2", Source: &storage.Source{VolumeID: v.GetVolumeId()}, Parameters: map[string]string{share.ParamServer: testExport.Server, share.ParamShare: testExport.Share}}
	plan, err := share.PlanVolume(spec)
	must(t, err)
	made := make(chan error)
	go func() {
		made <- c.backend().exports.Use(testExport, func(s *store) error {
			_, err := c.backend().create(did, s, request{spec, plan, v.GetVolumeId()})
			return err
		})
	}()
	<-began
	_, err = c.create("pvc-2", "volume", v.GetVolumeId(), share.ParamPermissions, "0700")
	refused(t, err, codes.Aborted, "an earlier request with this name and other properties is in flight")
	close(end)
	must(t, <-made)
	_, err = c.create("pvc-2", "volume", v.GetVolumeId(), share.ParamPermissions, "0700")
	refused(t, err, codes.AlreadyExists, "mountPermissions")
	must(t, c.delete(v.GetVolumeId()))
	must(t, c.delete(c.mustCreate("pvc-2", "volume", v.GetVolumeId()).GetVolumeId()))
	wantShare(t, shareDir)
}

// The same for a snapshot whose first caller has returned.
func TestOneSnapshotAtATime(t *testing.T) {
	c, shareDir := newLocalController(t)
	v := c.mustCreate("pvc-1")
	must(t, c.backend().exports.Use(testExport, func(s *store) error {
		done, err := s.claimTemp(tempOf("snapshot", "snap", "", v.GetVolumeId()))
		must(t, err)
		_, err = c.snapshot("snap", v.GetVolumeId())
		refused(t, err, codes.Aborted, "an earlier request with this name and other properties is in flight")
		done()
		return nil
	}))
	id, err := c.snapshot("snap", v.GetVolumeId())
	must(t, errors.Join(err, c.deleteSnapshot(id), c.delete(v.GetVolumeId())))
	wantShare(t, shareDir)
}

// A volume is never inside another one, even if both are created concurrently.
func TestConcurrentNestedCreates(t *testing.T) {
	c, shareDir := newLocalController(t)
	for i := range 50 {
		outer, inner := fmt.Sprint("outer", i), fmt.Sprintf("outer%d/inner", i)
		var all sync.WaitGroup
		var made [2]*csi.Volume
		var errs [2]error
		for n, subDir := range []string{outer, inner} {
			all.Go(func() { made[n], errs[n] = c.create(subDir, share.ParamSubDir, subDir) })
		}
		all.Wait()
		if errs[0] == nil && errs[1] == nil {
			t.Fatalf("%s and %s are volumes", outer, inner)
		}
		for n, v := range made {
			if errs[n] != nil {
				refused(t, errs[n], codes.AlreadyExists, "")
				continue
			}
			must(t, c.delete(v.GetVolumeId()))
		}
		wantShare(t, shareDir)
	}
}

// Pods that can write to the parent directories, through a PersistentVolume created by
// hand, must not redirect the driver by a link.
func TestLinkedParents(t *testing.T) {
	c, shareDir := newLocalController(t)
	c.mustCreate("pvc-1")
	must(t, os.Mkdir(filepath.Join(shareDir, "team"), 0o755))
	for link, to := range map[string]string{"team/a": "../pvc-1", "team/b": "../.csikit-nfs/trash", "team/c": ".."} {
		must(t, os.Symlink(to, filepath.Join(shareDir, link)))
		_, err := c.create("pvc-2", share.ParamSubDir, link+"/x")
		refused(t, err, codes.FailedPrecondition, link)
	}
	v := c.mustCreate("pvc-3", share.ParamSubDir, "team/d/x")
	must(t, os.Rename(filepath.Join(shareDir, "team/d"), filepath.Join(shareDir, "team/moved")))
	must(t, os.Symlink("moved", filepath.Join(shareDir, "team/d")))
	refused(t, c.delete(v.GetVolumeId()), codes.FailedPrecondition, "team/d")
	_, err := c.snapshot("snap", v.GetVolumeId())
	refused(t, err, codes.FailedPrecondition, "team/d")
	wantMode(t, filepath.Join(shareDir, "team/moved/x"), fs.ModeDir|0o777)
	must(t, os.RemoveAll(filepath.Join(shareDir, "team")))
	must(t, c.delete(v.GetVolumeId()))
	wantShare(t, shareDir, "pvc-1")
}

func TestSnapshots(t *testing.T) {
	c, shareDir := newLocalController(t, share.Export{Server: "nas", Share: "/other"}, share.Export{Server: "nas", Share: "/srv"})
	v := c.mustCreate("pvc-1", "size", "8")
	must(t, os.WriteFile(filepath.Join(shareDir, "pvc-1", "file"), []byte("first"), 0o640))
	id, err := c.snapshot("snap", v.GetVolumeId())
	must(t, err)
	must(t, os.WriteFile(filepath.Join(shareDir, "pvc-1", "file"), []byte("second"), 0o640))
	if again, err := c.snapshot("snap", v.GetVolumeId()); err != nil || again != id {
		t.Errorf("taken again it is %s (%v), not %s", again, err, id)
	}
	other := c.mustCreate("pvc-2")
	_, err = c.snapshot("snap", other.GetVolumeId())
	refused(t, err, codes.AlreadyExists, v.GetVolumeId())
	_, err = c.snapshot("snap 2", "vol1#nas#/srv#none#ABCDEFGHIJKLM#delete")
	refused(t, err, codes.NotFound, "none")
	must(t, c.delete(v.GetVolumeId())) // the snapshot is a copy, and stays

	for _, to := range []string{"/srv", "/other"} {
		r := c.mustCreate("restored", "snapshot", id, share.ParamShare, to)
		data, err := os.ReadFile(filepath.Join(filepath.Dir(shareDir), to, "restored", "file"))
		if err != nil || string(data) != "first" || r.GetContentSource().GetSnapshot().GetSnapshotId() != id {
			t.Errorf("%s: restored is %q (%v), %v", to, data, err, r)
		}
		wantMode(t, filepath.Join(filepath.Dir(shareDir), to, "restored"), fs.ModeDir|0o777)
		must(t, c.delete(r.GetVolumeId()))
	}
	must(t, c.delete(c.mustCreate("by size", "snapshot", id, "size", "9").GetVolumeId()))
	must(t, errors.Join(c.deleteSnapshot(id), c.deleteSnapshot(id)))
	_, err = c.create("restored", "snapshot", id)
	refused(t, err, codes.NotFound, "snap1")
	wantShare(t, shareDir, "pvc-2")
}

func (c *co) controllerServer() csi.ControllerServer { return c.controller.(direct).to }
func (c *co) backend() *backend                      { return c.storage }
func (c *co) list() *lister                          { return &lister{c.storage} }

// A source that is deleted during the copy, for example by another process, is an error:
// the copy would be incomplete.
func TestSourceDeletedDuringCopy(t *testing.T) {
	c, shareDir := newLocalController(t)
	v := c.mustCreate("pvc-1")
	for i := range 10 {
		must(t, os.WriteFile(filepath.Join(shareDir, "pvc-1", fmt.Sprint(i)), nil, 0o600))
	}
	id, err := c.snapshot("snap", v.GetVolumeId())
	must(t, err)
	for source, remove := range map[string]func() error{
		v.GetVolumeId(): func() error { return c.delete(v.GetVolumeId()) },
		id:              func() error { return c.deleteSnapshot(id) },
	} {
		for again := range 2 {
			err = c.backend().exports.Use(testExport, func(s *store) error {
				must(t, s.open())
				files := 0
				_, _, err := s.fill(path.Join(dirTmp, "copy"), source, false, share.Access{}, c.backend().exports, func(int64, int64) {
					if files++; files == 3 && again == 0 {
						must(t, remove())
						wantTrash(t, shareDir)
					}
				})
				return err
			})
			if !errors.Is(err, csierr.NotFound) {
				t.Errorf("a copy of %s was made, but for: %v", source, err)
			}
		}
	}
	must(t, os.RemoveAll(filepath.Join(shareDir, storeName, dirTmp, "copy")))
	wantShare(t, shareDir)
}

// A volume that is deleted between reading its record and checking its directory is not
// reported as damaged, and its parents are not created again.
func TestDeletedConcurrently(t *testing.T) {
	c, shareDir := newLocalController(t)
	v := c.mustCreate("pvc-1", share.ParamSubDir, "a/b/pvc-1")
	id, err := c.snapshot("snap", v.GetVolumeId())
	must(t, err)
	must(t, c.backend().exports.Use(testExport, func(s *store) error {
		must(t, s.open())
		key := path.Join(dirSnapshots, share.Digest("snap"))
		volume, err1 := s.readVolume(share.Digest("a/b/pvc-1"))
		snapshot, err2 := s.readSnapshot(key + extRecord)
		must(t, errors.Join(err1, err2, c.delete(v.GetVolumeId()), c.deleteSnapshot(id)))
		refused(t, fail("", "", "%w", s.placeVolume(volume)), codes.Aborted, "it was deleted concurrently")
		refused(t, fail("", "", "%w", s.placeSnapshot(snapshot, key)), codes.Aborted, "it was deleted concurrently")
		return nil
	}))
	wantShare(t, shareDir)
}

// An interrupted attempt is not resumed if the volume's directory is another one by now,
// restored from a backup.
func TestSourceReplaced(t *testing.T) {
	c, shareDir := newLocalController(t)
	at := time.Unix(1, 0) // as of files from an archive
	dir := filepath.Join(shareDir, "pvc-1")
	write := func(text string) {
		t.Helper()
		file := filepath.Join(dir, "file")
		must(t, errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chtimes(file, at, at)))
	}
	v := c.mustCreate("pvc-1")
	write("old")
	must(t, c.backend().exports.Use(testExport, func(s *store) error {
		must(t, s.open())
		_, _, err := s.fill(tempOf("snapshot", "snap", "", v.GetVolumeId()), v.GetVolumeId(), false, share.Access{}, c.backend().exports, func(int64, int64) {})
		return err
	}))
	must(t, errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o777)))
	write("new")
	info, err := os.Stat(dir)
	must(t, err)
	must(t, c.backend().exports.Use(testExport, func(s *store) error {
		must(t, s.open())
		r, err := s.readVolume(share.Digest("pvc-1"))
		must(t, err)
		r.Inode = inodeOf(info)
		data, err := encode(r)
		return errors.Join(err, s.replace(path.Join(dirVolumes, share.Digest("pvc-1")+extRecord), data))
	}))
	id, err := c.snapshot("snap", v.GetVolumeId())
	must(t, err)
	data, err := os.ReadFile(filepath.Join(shareDir, storeName, dirSnapshots, share.Digest("snap"), "file"))
	if err != nil || string(data) != "new" {
		t.Errorf("the snapshot has %q (%v)", data, err)
	}
	must(t, errors.Join(os.RemoveAll(dir+".old"), c.delete(v.GetVolumeId()), c.deleteSnapshot(id)))
	wantShare(t, shareDir)
}

// A recreated volume has a new ID: late calls for the deleted one find nothing, and
// delete nothing.
func TestLateCalls(t *testing.T) {
	c, shareDir := newLocalController(t)
	for _, tt := range []struct{ subDir, how string }{{"pvc-1", "delete"}, {"x/pvc-1", "archive"}, {strings.Repeat("long/", 20) + "pvc-1", "delete"}} {
		create := func() *csi.Volume {
			return c.mustCreate("pvc-1", share.ParamSubDir, tt.subDir, share.ParamOnDelete, tt.how)
		}
		old := create().GetVolumeId()
		must(t, c.delete(old))
		v := create()
		if v.GetVolumeId() == old {
			t.Errorf("the ID %s is given twice", old)
		}
		must(t, os.WriteFile(filepath.Join(shareDir, tt.subDir, "file"), nil, 0o600))
		must(t, c.delete(old))
		_, err := c.expand(old, 100, 0)
		refused(t, err, codes.NotFound, "")
		_, err = c.snapshot("snap", old)
		refused(t, err, codes.NotFound, "")
		_, err = c.create("clone", "volume", old)
		refused(t, err, codes.NotFound, "")
		_, err = c.controllerServer().ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{VolumeId: old})
		refused(t, err, codes.NotFound, "")
		wantShareFiles(t, shareDir, tt.subDir+"/file")
		must(t, c.delete(v.GetVolumeId()))
		must(t, os.RemoveAll(filepath.Join(shareDir, "x")))
		wantShare(t, shareDir)
	}

	v := c.mustCreate("pvc-1")
	var ids [2]string
	for i := range ids {
		var err error
		ids[i], err = c.snapshot("snap", v.GetVolumeId())
		must(t, err)
		if i == 0 {
			must(t, c.deleteSnapshot(ids[i]))
		}
	}
	must(t, c.deleteSnapshot(ids[0]))
	_, err := c.create("restored", "snapshot", ids[0])
	refused(t, err, codes.NotFound, "")
	_, err = c.controllerServer().GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: ids[0]})
	refused(t, err, codes.NotFound, "")
	refused(t, c.deleteSnapshot(ids[1]+"#port=2050"), codes.FailedPrecondition, "nothing is changed")
	_, err = c.create("restored", "snapshot", ids[1]+"#port=2050")
	refused(t, err, codes.NotFound, "")
	restored := c.mustCreate("restored", "snapshot", ids[1])
	must(t, errors.Join(c.delete(restored.GetVolumeId()), c.deleteSnapshot(ids[1]), c.delete(v.GetVolumeId())))
	wantShare(t, shareDir)
}

// An interrupted deletion is only resumed by its own ID, and never deletes a newer
// volume.
func TestLateDeletion(t *testing.T) {
	c, shareDir := newLocalController(t, testExport)
	own := filepath.Join(shareDir, storeName)
	volume, snap := filepath.Join(own, dirVolumes, share.Digest("pvc-1")), filepath.Join(own, dirSnapshots, share.Digest("snap"))
	v := c.mustCreate("pvc-1")
	must(t, os.WriteFile(filepath.Join(shareDir, "pvc-1", "file"), nil, 0o600))
	id, err := c.snapshot("snap", v.GetVolumeId())
	must(t, err)
	other := func(id string) string { return strings.Replace(id, "#"+share.NonceOf(id), "#ABCDEFGHIJKLM", 1) }
	kept := func() {
		t.Helper()
		_, err := os.Stat(filepath.Join(snap, "file"))
		must(t, err)
		wantShareFiles(t, shareDir, "pvc-1/file")
	}

	// Both exist, as after a server lost the removal of the first one: the inode numbers are
	// those of the newer volumes.
	for _, record := range []string{volume, snap} {
		must(t, os.Link(record+extRecord, record+extDeleting))
	}
	c.backend().Recover()
	for c.backend().cleans() > 0 {
		time.Sleep(time.Millisecond)
	}
	for _, record := range []string{volume, snap} {
		if _, err := os.Stat(record + extDeleting); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the deletion is not over: %v", err)
		}
	}
	kept()

	// A deletion that has begun is completed by the driver, not by a call with another ID.
	for _, record := range []string{volume, snap} {
		must(t, os.Rename(record+extRecord, record+extDeleting))
	}
	must(t, c.backend().exports.Use(testExport, func(s *store) error {
		must(t, s.openLocked())
		must(t, s.withChangeLock(func() error { return s.deleteByID(other(v.GetVolumeId()), share.Digest("pvc-1")) }))
		must(t, s.deleteSnapshotByID(other(id), path.Join(dirSnapshots, share.Digest("snap"))))
		retained := strings.Replace(v.GetVolumeId(), "#delete", "#retain", 1)
		if err := s.withChangeLock(func() error { return s.deleteByID(retained, share.Digest("pvc-1")) }); !errors.Is(err, errRefused) {
			t.Errorf("with an ID that was changed: %v", err)
		}
		return nil
	}))
	kept()
	must(t, errors.Join(c.delete(v.GetVolumeId()), c.deleteSnapshot(id)))
	wantShare(t, shareDir)
}

func TestLists(t *testing.T) {
	c, _ := newLocalController(t, share.Export{Server: "nas", Share: "/other"}, share.Export{Server: "nas", Share: "/srv"})
	want := map[string]bool{}
	for i := range 7 {
		v := c.mustCreate(fmt.Sprint("pvc-", i), share.ParamShare, []string{"/srv", "/other"}[i%2])
		want[v.GetVolumeId()] = true
		id, err := c.snapshot(fmt.Sprint("snap-", i), v.GetVolumeId())
		must(t, err)
		want[id] = true
	}
	for _, size := range []int32{0, 1, 2, 3, 7, 100} {
		got := map[string]bool{}
		for token, first := "", true; first || token != ""; first = false {
			r, err := c.controller.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: size, StartingToken: token})
			must(t, err)
			for _, e := range r.GetEntries() {
				got[e.GetVolume().GetVolumeId()] = true
			}
			if token = r.GetNextToken(); size > 0 && len(r.GetEntries()) > int(size) {
				t.Errorf("a page of %d has %d", size, len(r.GetEntries()))
			}
		}
		for token, first := "", true; first || token != ""; first = false {
			r, err := c.controller.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{MaxEntries: size, StartingToken: token})
			must(t, err)
			for _, e := range r.GetEntries() {
				got[e.GetSnapshot().GetSnapshotId()] = true
			}
			token = r.GetNextToken()
		}
		if len(got) != len(want) {
			t.Errorf("pages of %d have %v, want %v", size, got, want)
		}
	}
	_, err := c.controller.ListVolumes(t.Context(), &csi.ListVolumesRequest{StartingToken: "vol1#nas#/srv#..#ABCDEFGHIJKLM#delete"})
	refused(t, err, codes.Aborted, "token")
	_, err = c.create("pvc", share.ParamShare, "/elsewhere")
	refused(t, err, codes.InvalidArgument, "-exports")
	refused(t, c.delete("vol1#nas#/elsewhere#pvc#ABCDEFGHIJKLM#delete"), codes.FailedPrecondition, "-exports")
	r, err := c.controller.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	if err != nil || r.GetAvailableCapacity() <= 0 || r.GetMaximumVolumeSize().GetValue() < r.GetAvailableCapacity() {
		t.Errorf("capacity is %v (%v)", r, err)
	}
}

// A call that joins an earlier one does not return that one's result, which may predate
// a change that was reported since.
func TestJoinedReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newLocalController(t, testExport)
		b := c.backend()
		v := c.mustCreate("pvc-1")
		for key, read := range map[string]func() error{
			"get volume " + v.GetVolumeId(): func() error { _, err := b.GetVolume(t.Context(), v.GetVolumeId()); return err },
			`list volumes nas:/srv, 0 after ""`: func() error {
				page, _, err := c.list().ListVolumes(t.Context(), "", 0)
				if err == nil && len(page) != 1 {
					t.Errorf("listed are %v", page)
				}
				return err
			},
		} {
			earlier := make(chan struct{})
			var all sync.WaitGroup
			all.Go(func() {
				_, _, err := b.servers.Do(t.Context(), withoutProbe(testExport), key, func(*breaker.Job) (any, error) { <-earlier; return nil, csierr.NotFound })
				if !errors.Is(err, csierr.NotFound) {
					t.Error(err)
				}
			})
			synctest.Wait()
			all.Go(func() {
				if err := read(); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
			if jobs := b.servers.Jobs(); len(jobs) != 1 || jobs[0].Waiting != 2 {
				t.Errorf("%s was not joined: %+v", key, jobs)
			}
			close(earlier)
			all.Wait()
		}
	})
}

func TestExpandVolume(t *testing.T) {
	c, _ := newLocalController(t)
	v := c.mustCreate("pvc-1", "size", "8")
	for _, size := range []int64{8, 10, 10, 9} {
		if got, err := c.expand(v.GetVolumeId(), size, 0); err != nil || got < size || got > 10 {
			t.Errorf("expanded to %d it has %d (%v)", size, got, err)
		}
	}
	_, err := c.expand(v.GetVolumeId(), 0, 5)
	refused(t, err, codes.OutOfRange, "the limit is 5")
	_, err = c.expand(v.GetVolumeId(), 1<<60, 0)
	refused(t, err, codes.OutOfRange, "the size of nas:/srv is")
	_, err = c.expand("vol1#nas#/srv#none#ABCDEFGHIJKLM#delete", 1, 0)
	refused(t, err, codes.NotFound, "none")
	_, err = c.create("huge", "size", "1152921504606846976")
	refused(t, err, codes.OutOfRange, "the size of nas:/srv is")
}

// An interrupted operation is completed at the next start, without another call.
func TestRecover(t *testing.T) {
	c, shareDir := newLocalController(t)
	v := c.mustCreate("pvc-1")
	must(t, os.WriteFile(filepath.Join(shareDir, "pvc-1", "file"), nil, 0o600))
	own := filepath.Join(shareDir, storeName)
	record := filepath.Join(own, dirVolumes, share.Digest("pvc-1"))
	must(t, os.Rename(record+extRecord, record+extDeleting)) // killed after the first step
	must(t, os.MkdirAll(filepath.Join(own, dirTrash, "old", "deep", "tree"), 0o755))
	must(t, os.MkdirAll(filepath.Join(own, dirTmp, "abandoned", "data"), 0o700))
	must(t, os.MkdirAll(filepath.Join(own, dirTmp, "under way", "data"), 0o700))
	long := time.Now().Add(-2 * abandonedAfter)
	must(t, os.Chtimes(filepath.Join(own, dirTmp, "abandoned"), long, long))

	log := slog.New(slog.NewTextHandler(testLog{T: t}, nil))
	exports := newExports(localDirs(filepath.Dir(shareDir)), 0, log)
	defer exports.Close()
	b := newBackend(testServers(), exports, []share.Export{{Server: "nas", Share: "/srv"}}, log)
	b.server = withoutProbe
	defer b.Close()
	b.Recover()
	for b.cleans() > 0 {
		time.Sleep(time.Millisecond)
	}
	_, err := os.Stat(filepath.Join(own, dirTmp, "under way"))
	must(t, errors.Join(err, os.RemoveAll(filepath.Join(own, dirTmp, "under way"))))
	wantShare(t, shareDir)
	must(t, c.delete(v.GetVolumeId()))
}

// After ESTALE, as when the server's file system was replaced, the export is opened
// again.
func TestStaleHandles(t *testing.T) {
	mounts := newCountingMounts(t)
	x := newExports(mounts, 0, slog.New(slog.DiscardHandler))
	defer x.Close()
	tries := 0
	err := x.Use(testExport, func(s *store) error {
		if tries++; tries < 3 {
			return &fs.PathError{Op: "open", Path: "x", Err: unix.ESTALE}
		}
		return s.create()
	})
	if err != nil || mounts.mounts != 3 {
		t.Errorf("%v after %d mounts", err, mounts.mounts)
	}
	err = x.Use(testExport, func(s *store) error { return unix.ESTALE })
	if !errors.Is(err, unix.ESTALE) {
		t.Error(err)
	}
}

type countingMounts struct {
	localDirs
	mounts, unmounts int
	busy             int // how often unmounting fails
}

func (m *countingMounts) Unmount(share.Export) error {
	m.unmounts++
	if m.unmounts <= m.busy {
		return unix.EBUSY
	}
	return nil
}

func (m *countingMounts) Mount(e share.Export) (*os.Root, error) {
	m.mounts++
	return m.localDirs.Mount(e)
}

// Concurrent users of an export share one mount, which is unmounted when they are done.
func TestSharedMount(t *testing.T) {
	mounts := newCountingMounts(t)
	x := newExports(mounts, time.Hour, slog.New(slog.DiscardHandler))
	var inside, all sync.WaitGroup
	inside.Add(10)
	for range 10 {
		all.Go(func() {
			must(t, x.Use(testExport, func(*store) error {
				inside.Done()
				inside.Wait()
				return nil
			}))
		})
	}
	all.Wait()
	if rows := x.Snapshot(); mounts.mounts != 1 || len(rows) != 1 || rows[0].Users != 0 {
		t.Errorf("%d mounts, %+v", mounts.mounts, rows)
	}
	x.Close()
	if rows := x.Snapshot(); len(rows) != 0 {
		t.Errorf("after the end: %+v", rows)
	}
}

func newCountingMounts(t *testing.T) *countingMounts {
	t.Helper()
	mounts := &countingMounts{localDirs: localDirs(t.TempDir())}
	must(t, os.Mkdir(filepath.Join(string(mounts.localDirs), "srv"), 0o755))
	return mounts
}

// A timer that fires late does not unmount the mount of later users.
func TestLateTimer(t *testing.T) {
	mounts := newCountingMounts(t)
	x := newExports(mounts, time.Hour, slog.New(slog.DiscardHandler))
	defer x.Close()
	nothing := func(*store) error { return nil }
	must(t, x.Use(testExport, nothing))
	m := x.open[testExport]
	m.unmountIfIdle()
	must(t, x.Use(testExport, func(*store) error {
		before := mounts.unmounts
		m.unmountIfIdle()
		if mounts.unmounts != before || len(x.Snapshot()) != 1 {
			t.Errorf("unmounted %d times while it is in use, and listed are %v", mounts.unmounts-before, x.Snapshot())
		}
		return nil
	}))
}

// A busy mount is unmounted later.
func TestBusyMount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mounts := newCountingMounts(t)
		mounts.busy = 2
		x := newExports(mounts, time.Minute, slog.New(slog.DiscardHandler))
		must(t, x.Use(testExport, func(*store) error { return nil }))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if mounts.unmounts != 3 || len(x.Snapshot()) != 0 {
			t.Errorf("unmounted %d times, and listed are %v", mounts.unmounts, x.Snapshot())
		}
	})
}

// A call that panics does not remain counted as a user.
func TestPanic(t *testing.T) {
	x := newExports(newCountingMounts(t), time.Hour, slog.New(slog.DiscardHandler))
	defer x.Close()
	func() {
		defer func() { _ = recover() }()
		_ = x.Use(testExport, func(*store) error { panic("a bug") })
	}()
	if rows := x.Snapshot(); len(rows) != 1 || rows[0].Users != 0 {
		t.Errorf("users are left: %+v", rows)
	}
}

// The driver works in the mounted export, and never in the mount point below it, on the
// local disk.
func TestNotMounted(t *testing.T) {
	gate.UserNS(t)
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "export"), 0o755))
	if root, err := openMounted(filepath.Join(dir, "export")); err == nil {
		root.Close()
		t.Error("a directory is taken for a mounted export")
	}
	must(t, unix.Mount("tmpfs", filepath.Join(dir, "export"), "tmpfs", 0, ""))
	root, err := openMounted(filepath.Join(dir, "export"))
	must(t, errors.Join(err, root.Close(), unix.Unmount(filepath.Join(dir, "export"), 0)))
}

// find returns what a node mounts.
func find(id string, attributes map[string]string) (storage.Mount, error) {
	return (&share.Mounts{FSType: "nfs"}).Mount(context.Background(), storage.MountRequest{VolumeID: id, Context: attributes})
}

// Names of namespaces and claims may be long: 63 and 253 bytes.
func TestLongSubDir(t *testing.T) {
	c, shareDir := newLocalController(t, testExport)
	namespace, claim := strings.Repeat("n", 63), strings.Repeat("c", 253)
	subDir := namespace + "/" + claim
	for _, how := range []string{"delete", "archive"} {
		create := func(name string) (*csi.Volume, error) {
			return c.create(name, share.ParamSubDir, "${pvc.metadata.namespace}/${pvc.metadata.name}", share.ParamOnDelete, how,
				csispec.ParameterPVCNamespace, namespace, csispec.ParameterPVCName, claim)
		}
		v, err := create("pvc-1")
		must(t, err)
		if len(v.GetVolumeId()) > share.MaxID || v.GetVolumeContext()[share.ParamSubDir] != subDir {
			t.Errorf("the volume is %v", v)
		}
		must(t, os.WriteFile(filepath.Join(shareDir, subDir, "file"), nil, 0o600))
		if again, err := create("pvc-1"); err != nil || again.GetVolumeId() != v.GetVolumeId() {
			t.Errorf("again it is %v (%v)", again, err)
		}
		_, err = create("pvc-2")
		refused(t, err, codes.AlreadyExists, "pvc-1")
		ref, err := find(v.GetVolumeId(), v.GetVolumeContext())
		if err != nil || ref.Source != "nas:/srv/"+subDir {
			t.Errorf("mounted is %v (%v)", ref, err)
		}
		for _, change := range []map[string]string{
			{share.ParamSubDir: namespace + "/other"}, {share.ParamSubDir: namespace}, {share.ParamSubDir: ""}, {share.ParamServer: "other"}, {share.ParamShare: "/other"},
		} {
			attributes := maps.Clone(v.GetVolumeContext())
			maps.Copy(attributes, change)
			if ref, err := find(v.GetVolumeId(), attributes); err == nil {
				t.Errorf("with %v it is %v", change, ref)
			}
		}
		if _, err := find(v.GetVolumeId(), nil); err == nil || !strings.Contains(err.Error(), "attributes") {
			t.Errorf("without attributes: %v", err)
		}
		id, err := c.snapshot("snap", v.GetVolumeId())
		must(t, err)
		clone, err := c.create("pvc-3", "volume", v.GetVolumeId())
		must(t, err)
		must(t, errors.Join(c.deleteSnapshot(id), c.delete(clone.GetVolumeId())))
		_, err = c.expand(v.GetVolumeId(), 100, 0)
		must(t, err)
		page, next, err := c.list().ListVolumes(t.Context(), "", 0)
		if err != nil || next != "" || len(page) != 1 || page[0].Context[share.ParamSubDir] != subDir {
			t.Errorf("listed are %v (%v)", page, err)
		}
		if page, _, err := c.list().ListVolumes(t.Context(), v.GetVolumeId(), 0); err != nil || len(page) != 0 {
			t.Errorf("listed after it are %v (%v)", page, err)
		}
		confirmed, err := c.controllerServer().ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: v.GetVolumeId(), VolumeContext: v.GetVolumeContext(), VolumeCapabilities: []*csi.VolumeCapability{c.capability(shared)}})
		if err != nil || confirmed.GetConfirmed() == nil {
			t.Errorf("validated: %v (%v)", confirmed, err)
		}
		must(t, errors.Join(c.delete(v.GetVolumeId()), c.delete(v.GetVolumeId())))
	}
	entries, err := os.ReadDir(filepath.Join(shareDir, namespace))
	if err != nil || len(entries) != 1 || !strings.HasPrefix(entries[0].Name(), "archived-") {
		t.Errorf("archived are %v (%v)", entries, err)
	}
	must(t, os.RemoveAll(filepath.Join(shareDir, namespace)))
	wantShare(t, shareDir)
	_, err = c.create("pvc-4", share.ParamSubDir, strings.Repeat("x", 256))
	refused(t, err, codes.InvalidArgument, "255")
	_, err = c.create("pvc-4", share.ParamSubDir, strings.Repeat("long/", 200)+"x")
	refused(t, err, codes.InvalidArgument, "1000")
}

// deepen nests n directories, even deeper than PATH_MAX, as a pod can with chdir(2).
func deepen(t *testing.T, dir string, n int) {
	t.Helper()
	f, err := os.Open(dir)
	must(t, err)
	for range n {
		must(t, unix.Mkdirat(int(f.Fd()), "d", 0o755))
		fd, err := unix.Openat(int(f.Fd()), "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, errors.Join(err, f.Close()))
		f = os.NewFile(uintptr(fd), "d")
	}
	must(t, f.Close())
}

// However deeply a pod nested its directories, deleting them needs a bounded number of
// descriptors and a bounded stack, and a copy is refused with a final error.
func TestDeepTree(t *testing.T) {
	c, shareDir := newLocalController(t)
	var old unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1000, Max: old.Max}))
	defer func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }()
	v := c.mustCreate("pvc-1")
	deepen(t, filepath.Join(shareDir, "pvc-1"), 3000)
	_, err := c.snapshot("snap", v.GetVolumeId())
	refused(t, err, codes.FailedPrecondition, "deep")
	must(t, c.delete(v.GetVolumeId()))
	wantShare(t, shareDir)
}

// A volume or snapshot with a record that was not moved to its final path before the
// driver was killed is not orphaned.
func TestTidyKeepsWhatHasARecord(t *testing.T) {
	c, shareDir := newLocalController(t, testExport)
	v := c.mustCreate("pvc-1")
	must(t, os.WriteFile(filepath.Join(shareDir, "pvc-1", "file"), nil, 0o600))
	id, err := c.snapshot("snap", v.GetVolumeId())
	must(t, err)
	own := filepath.Join(shareDir, storeName)
	long := time.Now().Add(-2 * abandonedAfter)
	for place, temp := range map[string]string{
		filepath.Join(shareDir, "pvc-1"):                       tempOf("volume", "pvc-1", "pvc-1", ""),
		filepath.Join(own, dirSnapshots, share.Digest("snap")): tempOf("snapshot", "snap", "", v.GetVolumeId()),
	} {
		temp = filepath.Join(own, temp)
		must(t, errors.Join(os.Mkdir(temp, 0o700), os.Rename(place, filepath.Join(temp, "data")), os.Chtimes(temp, long, long)))
	}
	c.backend().Recover()
	for c.backend().cleans() > 0 {
		time.Sleep(time.Millisecond)
	}
	c.mustCreate("pvc-1")
	wantShareFiles(t, shareDir, "pvc-1/file")
	clone, err := c.create("pvc-2", "snapshot", id)
	must(t, err)
	wantShareFiles(t, shareDir, "pvc-1/file", "pvc-2/file")
	must(t, errors.Join(c.delete(v.GetVolumeId()), c.delete(clone.GetVolumeId()), c.deleteSnapshot(id)))
	wantShare(t, shareDir)
}

// A server that hangs does not block the exit of the process.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mounts := &hangingMounts{countingMounts: newCountingMounts(t), hang: make(chan struct{})}
		x := newExports(mounts, time.Minute, slog.New(slog.DiscardHandler))
		must(t, x.Use(testExport, func(*store) error { return nil }))
		start := time.Now()
		x.Close()
		if took := time.Since(start); took > time.Minute {
			t.Errorf("it took %v", took)
		}
		close(mounts.hang)
		synctest.Wait()
	})
}

type hangingMounts struct {
	*countingMounts
	hang chan struct{}
}

func (m *hangingMounts) Unmount(share.Export) error { <-m.hang; return nil }
