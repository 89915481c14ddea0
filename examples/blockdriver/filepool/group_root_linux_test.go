package filepool_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/filepool"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/loopdev"
	"github.com/csikit/csikit/nodeops"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// usedVolumes are volumes of one driver on one pool that shares blocks, staged and
// published.
func usedVolumes(t *testing.T, names ...string) []*crashVolume {
	t.Helper()
	w := newCrashVolume(t, "ext4", 64<<20)
	mountPool(t, filepath.Join(w.dir, "pool"), "xfs")
	startInProcess(t, w.dir)
	t.Cleanup(w.close)
	var all []*crashVolume
	for _, name := range names {
		v := *w
		v.name = name
		must(t, os.Mkdir(v.staging(), 0o700))
		must(t, v.create())
		must(t, v.attach())
		must(t, v.stage())
		must(t, v.publish(name, false))
		all = append(all, &v)
	}
	return all
}

func (w *crashVolume) group(ids ...string) (*csi.VolumeGroupSnapshot, error) {
	resp, err := csi.NewGroupControllerClient(w.conn).CreateVolumeGroupSnapshot(w.ctx(), &csi.CreateVolumeGroupSnapshotRequest{Name: "group", SourceVolumeIds: ids})
	return resp.GetGroupSnapshot(), err
}

// Two volumes are written in turns. The snapshots of a group never have a write whose
// predecessor on the other volume they lack.
func TestGroupOfVolumesInUse(t *testing.T) {
	v := usedVolumes(t, "x", "y")
	stop, records, written := make(chan bool), make(chan bool, 1<<20), make(chan error)
	go func() {
		var files [2]*os.File
		var err error
		for i := range files {
			if files[i], err = os.Create(filepath.Join(v[i].target(v[i].name), "log")); err != nil {
				break
			}
			defer files[i].Close()
		}
		for n := 0; err == nil; n++ {
			select {
			case <-stop:
				written <- nil
				return
			default:
			}
			for _, f := range files {
				if err == nil {
					if _, err = fmt.Fprintf(f, "%08d\n", n); err == nil {
						err = f.Sync()
					}
				}
			}
			records <- true
		}
		written <- err
	}()
	for range 10 {
		<-records
	}
	g, err := v[0].group(v[0].id, v[1].id)
	must(t, err)
	for range 10 { // both are thawed
		<-records
	}
	close(stop)
	must(t, <-written)

	var size [2]int
	for _, s := range g.GetSnapshots() {
		i := slices.IndexFunc(v, func(v *crashVolume) bool { return v.id == s.GetSourceVolumeId() })
		image := filepath.Join(v[0].dir, "pool", "snapshots", s.GetSnapshotId()+".img")
		copied := filepath.Join(v[0].dir, fmt.Sprint("copy", i)) // the journal is replayed, which a snapshot must not see
		data, err := os.ReadFile(image)
		must(t, err)
		must(t, os.WriteFile(copied, data, 0o600))
		dev, err := loopdev.Attach(t.Context(), copied)
		must(t, err)
		defer dev.Detach(context.Background())
		at := filepath.Join(v[0].dir, fmt.Sprint("mnt", i))
		must(t, os.Mkdir(at, 0o700))
		must(t, unix.Mount(dev.Path, at, "ext4", 0, ""))
		defer unix.Unmount(at, 0)
		log, err := os.ReadFile(filepath.Join(at, "log"))
		must(t, err)
		size[i] = len(log) / 9
	}
	if size[0] < 10 || size[1] > size[0] || size[0] > size[1]+1 {
		t.Errorf("%d records of the first volume, %d of the second", size[0], size[1])
	}
	t.Logf("%d and %d records", size[0], size[1])
	if left, _ := filepath.Glob(filepath.Join(v[0].dir, "pool", "groups", "*"+filepool.ExtFrozen)); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	again, err := v[0].group(v[0].id, v[1].id)
	if err != nil || again.GetGroupSnapshotId() != g.GetGroupSnapshotId() || !again.GetCreationTime().AsTime().Equal(g.GetCreationTime().AsTime()) {
		t.Errorf("again: %v, %v", again, err)
	}
	must(t, os.WriteFile(filepath.Join(v[1].target("y"), "after"), nil, 0o600))
	for _, v := range v {
		must(t, errors.Join(v.unpublish(v.name), v.unstage()))
	}
}

// A volume that another process has frozen: no snapshot, nothing stays frozen that
// we froze, and what others froze stays so.
func TestGroupThawsAfterFailure(t *testing.T) {
	v := usedVolumes(t, "x", "y")
	slices.SortFunc(v, func(a, b *crashVolume) int { return map[bool]int{true: -1, false: 1}[a.id < b.id] })
	last := v[1]
	dir, err := os.Open(last.target(last.name))
	must(t, err)
	must(t, unix.IoctlSetInt(int(dir.Fd()), fiFreeze, 0))
	thawed := false
	defer func() {
		if !thawed {
			unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0)
		}
	}()
	_, err = v[0].group(v[0].id, v[1].id)
	refused(t, err, codes.Aborted, "frozen already")
	must(t, os.WriteFile(filepath.Join(v[0].target(v[0].name), "x"), []byte("x"), 0o600)) // or it hangs
	must(t, unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0))                                   // EINVAL if it was thawed
	thawed = true
	must(t, dir.Close())
	for _, d := range []string{"groups", "snapshots"} {
		if left, _ := os.ReadDir(filepath.Join(v[0].dir, "pool", d)); len(left) > 0 {
			t.Errorf("%s holds %v", d, left)
		}
	}
	must(t, v[0].unpublish(v[0].name))
	must(t, v[0].unstage())
	_, err = v[0].group(v[0].id, v[1].id) // attached, and not staged
	refused(t, err, codes.FailedPrecondition, "not staged")
	_, err = v[0].group(v[1].id)
	must(t, err) // a single one needs no freeze
	must(t, errors.Join(last.unpublish(last.name), last.unstage()))
}

func nodeEnv(ops *nodeops.Node, work *blocking.Group) storage.NodeEnv {
	return storage.NodeEnv{Env: storage.Env{Logger: slog.New(slog.DiscardHandler), Work: work}, NodeID: "node", Ops: ops}
}

// The disk does not answer, here because the pool is frozen, and so the kernel does not
// come back from the freeze. The caller is let go, and the volume is not left frozen.
func TestFreezeThatHangs(t *testing.T) {
	v := usedVolumes(t, "x")[0]
	work := new(blocking.Group)
	ops, err := nodeops.New(nodeops.Config{Blocking: work})
	must(t, err)
	n := filepool.OpenDevices(t, nodeEnv(ops, work), v.pool())
	defer n.Close()

	// The file's data are on the disk as little as its name.
	must(t, os.WriteFile(filepath.Join(v.target("x"), "dirty"), bytes.Repeat([]byte("x"), 1<<20), 0o600))
	freeze(t, v.pool(), fiFreeze)
	thawPool := sync.OnceFunc(func() { freeze(t, v.pool(), fiThaw) })
	defer thawPool()
	var pending *blocking.PendingError
	for timeout := time.Second; !errors.As(err, &pending); timeout *= 2 { // a slow machine has not come to the kernel yet
		if timeout > time.Minute {
			t.Fatalf("not pending: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		_, err = n.Freeze(ctx, v.id)
		cancel()
	}
	again, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Freeze(again, v.id); err == nil {
		t.Error("frozen, although the first freeze hangs")
	}
	thawPool()
	<-pending.Pending()
	must(t, os.WriteFile(filepath.Join(v.target("x"), "after"), []byte("x"), 0o600)) // hangs until it is thawed
	thaw, err := n.Freeze(t.Context(), v.id)
	for errors.Is(err, csierr.Busy) { // the one that was given up is being thawed
		thaw, err = n.Freeze(t.Context(), v.id)
	}
	must(t, err)
	must(t, thaw())
	must(t, os.WriteFile(filepath.Join(v.target("x"), "later"), []byte("x"), 0o600))
	must(t, errors.Join(v.unpublish("x"), v.unstage()))
}

// A process that was killed has left a volume frozen, as a pool says that is there later
// than the node plugin.
func TestLatePoolThaws(t *testing.T) {
	v := usedVolumes(t, "x")[0]
	late := filepath.Join(v.dir, "late")
	work := new(blocking.Group)
	ops, err := nodeops.New(nodeops.Config{Blocking: work})
	must(t, err)
	n := filepool.OpenDevices(t, nodeEnv(ops, work), v.pool(), late)
	defer func() { must(t, n.Close()) }()

	freeze(t, v.target("x"), fiFreeze)
	makePool(t, late)
	mark := filepath.Join(late, "groups", filepool.GroupID("g")+filepool.ExtFrozen)
	must(t, os.WriteFile(mark, filepool.FrozenMark(t, "node", v.id), 0o600))
	must(t, n.OpenAway(t.Context()))
	must(t, os.WriteFile(filepath.Join(v.target("x"), "x"), []byte("x"), 0o600)) // hangs until it is thawed
	if _, err := os.Stat(mark); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the mark stays: %v", err)
	}
	must(t, errors.Join(v.unpublish("x"), v.unstage()))
}

// A process that was killed has left a volume frozen: the next one thaws it when it
// starts.
func TestStartThaws(t *testing.T) {
	v := usedVolumes(t, "x")[0]
	dir, err := os.Open(v.target("x"))
	must(t, err)
	must(t, unix.IoctlSetInt(int(dir.Fd()), fiFreeze, 0))
	mark := filepath.Join(v.dir, "pool", "groups", filepool.GroupID("g")+filepool.ExtFrozen)
	must(t, os.WriteFile(mark, filepool.FrozenMark(t, "node", v.id), 0o600))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		args := []string{"-mode", "node", "-endpoint", "unix://" + v.dir + "/next.sock", "-pool", filepath.Join(v.dir, "pool"), "-node-id", "node"}
		done <- run(ctx, args, func(string) string { return "" }, os.Stdout, testLog{t})
	}()
	must(t, os.WriteFile(filepath.Join(v.target("x"), "x"), []byte("x"), 0o600)) // hangs until it is thawed
	must(t, dir.Close())
	_, err = csi.NewNodeClient(dial(t, v.dir+"/next.sock")).NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}, grpc.WaitForReady(true))
	must(t, err)
	stop()
	must(t, <-done)
	if _, err := os.Stat(mark); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the mark stays: %v", err)
	}
	must(t, errors.Join(v.unpublish("x"), v.unstage()))
}

// A group was to include a raw block volume, which cannot be frozen, and the
// mark names it: the node plugin starts all the same.
func TestStartWithABlockVolumeMarked(t *testing.T) {
	v := newServedVolume(t, "", 16<<20)
	must(t, errors.Join(v.stage(), v.publish("x", false)))
	mark := filepath.Join(v.dir, "pool", "groups", filepool.GroupID("g")+filepool.ExtFrozen)
	must(t, os.WriteFile(mark, filepool.FrozenMark(t, "node", v.id), 0o600))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		args := []string{"-mode", "node", "-endpoint", "unix://" + v.dir + "/next.sock", "-pool", filepath.Join(v.dir, "pool"), "-node-id", "node"}
		err := run(ctx, args, func(string) string { return "" }, os.Stdout, testLog{t})
		stop()
		done <- err
	}()
	_, err := csi.NewNodeClient(dial(t, v.dir+"/next.sock")).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{}, grpc.WaitForReady(true))
	stop()
	must(t, errors.Join(err, <-done))
	if _, err := os.Stat(mark); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the mark stays: %v", err)
	}
	must(t, errors.Join(v.unpublish("x"), v.unstage(), v.detach()))
}
