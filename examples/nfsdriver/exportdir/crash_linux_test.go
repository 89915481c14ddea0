package exportdir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/crash"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/nfsdriver/share"
	"golang.org/x/sys/unix"
)

// TestCrash runs the lifecycle of volumes and a snapshot and kills the driver with
// SIGKILL at every state-changing system call of every RPC. A new driver then gets the
// same request again, which must succeed, and the remaining requests. The data must stay
// intact and nothing be left behind.
func TestCrash(t *testing.T) {
	shares := newShares(t) // in memory: fsync costs nothing
	counts, _ := crashWalk(t, shares, -1, 0)
	kills := 0
	for step := range crashSteps {
		for n := 1; n <= counts[step]; n++ {
			_, killed := crashWalk(t, shares, step, n)
			if t.Failed() {
				t.Fatalf("after SIGKILL at call %d of %d of %s", n, counts[step], crashSteps[step].name)
			}
			if killed {
				kills++
			}
		}
	}
	if kills == 0 {
		t.Error("the driver was never killed")
	}
	t.Logf("%d kills; system calls per RPC: %v", kills, counts)
}

// crashed is one run of the lifecycle.
type crashed struct {
	*co
	dir, shareDir   string
	volume, another *csi.Volume
	snap            string
	want            map[string]string // the tree
}

var crashSteps = []struct {
	name string
	do   func(*crashed) error
}{
	{"CreateVolume", func(w *crashed) (err error) {
		w.volume, err = w.create("pvc-1", share.ParamSubDir, "team/one")
		return err
	}},
	{"CreateSnapshot", func(w *crashed) (err error) {
		if w.want == nil {
			w.plant(filepath.Join(w.shareDir, "team/one"))
		}
		w.snap, err = w.snapshot("snap", w.volume.GetVolumeId())
		return err
	}},
	{"CreateVolume of a snapshot", func(w *crashed) (err error) {
		w.another, err = w.create("pvc-2", share.ParamSubDir, "team/two", share.ParamOnDelete, "archive", "snapshot", w.snap)
		return err
	}},
	{"ControllerExpandVolume", func(w *crashed) error {
		_, err := w.controller.ControllerExpandVolume(w.ctx(), &csi.ControllerExpandVolumeRequest{VolumeId: w.another.GetVolumeId(), CapacityRange: &csi.CapacityRange{RequiredBytes: 1000}})
		return err
	}},
	{"DeleteVolume", func(w *crashed) error { return w.delete(w.volume.GetVolumeId()) }},
	{"DeleteVolume, archived", func(w *crashed) error { return w.delete(w.another.GetVolumeId()) }},
	{"DeleteSnapshot", func(w *crashed) error { return w.deleteSnapshot(w.snap) }},
}

// plant creates a small tree in the volume.
func (w *crashed) plant(dir string) {
	must(w.t, os.Mkdir(filepath.Join(dir, "sub"), 0o750))
	must(w.t, os.WriteFile(filepath.Join(dir, "sub", "file"), []byte("precious"), 0o640))
	must(w.t, os.Link(filepath.Join(dir, "sub", "file"), filepath.Join(dir, "hard")))
	must(w.t, os.Symlink("sub/file", filepath.Join(dir, "link")))
	must(w.t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	w.want = describe(w.t, dir)
}

func (w *crashed) command() *exec.Cmd {
	c := gate.RoleCommand(context.Background(), "localdriver", "-endpoint", "unix://"+w.dir+"/csi.sock", "-mode", "controller", "-exports", localExports)
	log, err := os.OpenFile(filepath.Join(w.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(w.t, err)
	w.t.Cleanup(func() { log.Close() })
	c.Stdout, c.Stderr = log, log
	c.Env = append(c.Environ(), "CSIKIT_TEST_SHARES="+w.dir)
	return c
}

// crashWalk runs the lifecycle in a new directory, and kills the driver at the n-th
// system call of one step, if the step makes so many. With a negative step it only
// counts them.
func crashWalk(t *testing.T, shares string, killAt, n int) (counts []int, killed bool) {
	dir, err := os.MkdirTemp(shares, "w")
	must(t, err)
	defer os.RemoveAll(dir)
	w := &crashed{co: newCO(t, "unix://"+dir+"/csi.sock", localClass), dir: dir, shareDir: filepath.Join(dir, "a")}
	must(t, errors.Join(os.Mkdir(w.shareDir, 0o755), os.Mkdir(filepath.Join(dir, "b"), 0o755)))
	driver, err := crash.Start(w.command())
	must(t, err)
	stop := func() error { // the driver that serves at the end
		driver.Kill()
		_ = driver.Wait()
		return nil
	}
	counts = make([]int, len(crashSteps))
	for i, step := range crashSteps {
		call := func() error { return step.do(w) }
		if i == killAt {
			driver.Arm(n)
			call = func() error { return w.during(driver, step.do) }
		} else if killAt < 0 {
			driver.Arm(0)
		}
		err := call()
		if i == killAt {
			driver.Disarm()
		}
		if i == killAt && driver.Killed() {
			killed = true
			_ = driver.Wait()
			next := w.command()
			must(t, next.Start())
			stop = func() error { return errors.Join(next.Process.Signal(syscall.SIGTERM), next.Wait()) }
			calls := driver.Calls()
			if err = again(func() error { return step.do(w) }); err != nil {
				err = fmt.Errorf("again, after SIGKILL before %v: %w", calls[len(calls)-1], err)
			}
		}
		if err != nil {
			t.Errorf("%s: %v", step.name, err)
			break
		}
		if killAt < 0 {
			counts[i] = len(driver.Calls())
		}
	}
	if !t.Failed() {
		compareTrees(t, describe(t, filepath.Join(w.shareDir, "team/archived-two")), w.want)
		must(t, os.RemoveAll(filepath.Join(w.shareDir, "team")))
		wantShare(t, w.shareDir)
	}
	must(t, stop())
	if t.Failed() {
		log, _ := os.ReadFile(filepath.Join(dir, "log"))
		t.Logf("%s", log)
	}
	return counts, killed
}

// during makes a call that fails when the driver is killed: a request that is not sent
// yet would wait for the next driver.
func (w *crashed) during(driver *crash.Process, do func(*crashed) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-driver.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	c := *w.co
	c.parent = ctx
	saved := w.co
	w.co = &c
	defer func() { w.co = saved }()
	return do(w)
}
