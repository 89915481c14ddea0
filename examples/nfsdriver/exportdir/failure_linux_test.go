package exportdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/crash"
	"github.com/csikit/csikit/examples/nfsdriver/share"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestFailures makes every state-changing system call of every RPC fail, one after the
// other. A final error must leave nothing behind (external-provisioner does not repeat
// the request). After any other error, the same request succeeds. A failed fsync is
// never reported as success.
func TestFailures(t *testing.T) {
	shares := newShares(t)
	for _, errno := range []syscall.Errno{unix.ENOSPC, unix.EIO, unix.ESTALE} {
		t.Run(errno.Error(), func(t *testing.T) {
			for _, rpc := range failing {
				t.Run(rpc.name, func(t *testing.T) { failEach(t, shares, errno, rpc) })
			}
		})
	}
}

// failing are the RPCs: what to do once, what to do before each call, and the call; left
// are the volumes that exist if the call does nothing.
var failing = []struct {
	name   string
	before func(w *crashed, name string)
	do     func(w *crashed, name string) error
	left   func(name string) []string
	after  func(w *crashed, name string) error
}{
	{
		name: "CreateVolume",
		do: func(w *crashed, name string) (err error) {
			w.another, err = w.create(name, share.ParamSubDir, "team/"+name)
			return err
		},
		left:  func(string) []string { return nil },
		after: func(w *crashed, _ string) error { return w.delete(w.another.GetVolumeId()) },
	},
	{
		name:   "CreateVolume of a volume",
		before: func(w *crashed, _ string) { w.source() },
		do: func(w *crashed, name string) (err error) {
			w.another, err = w.create(name, "volume", w.volume.GetVolumeId())
			return err
		},
		left: func(string) []string { return []string{"source"} },
		after: func(w *crashed, name string) error {
			compareTrees(w.t, describe(w.t, filepath.Join(w.shareDir, name)), w.want)
			return w.delete(w.another.GetVolumeId())
		},
	},
	{
		name:   "CreateSnapshot",
		before: func(w *crashed, _ string) { w.source() },
		do: func(w *crashed, name string) (err error) {
			w.snap, err = w.snapshot(name, w.volume.GetVolumeId())
			return err
		},
		left:  func(string) []string { return []string{"source"} },
		after: func(w *crashed, _ string) error { return w.deleteSnapshot(w.snap) },
	},
	{
		name: "ControllerExpandVolume",
		before: func(w *crashed, name string) {
			w.another = w.mustCreate(name, "size", "10")
		},
		do: func(w *crashed, _ string) error {
			_, err := w.controller.ControllerExpandVolume(w.ctx(), &csi.ControllerExpandVolumeRequest{VolumeId: w.another.GetVolumeId(), CapacityRange: &csi.CapacityRange{RequiredBytes: 20}})
			return err
		},
		after: func(w *crashed, _ string) error { return w.delete(w.another.GetVolumeId()) },
	},
	{
		name:   "DeleteVolume",
		before: func(w *crashed, name string) { w.another = w.mustCreate(name, share.ParamSubDir, "team/"+name) },
		do:     func(w *crashed, _ string) error { return w.delete(w.another.GetVolumeId()) },
	},
	{
		name: "DeleteSnapshot",
		before: func(w *crashed, name string) {
			w.source()
			var err error
			w.snap, err = w.snapshot(name, w.volume.GetVolumeId())
			must(w.t, err)
		},
		do: func(w *crashed, _ string) error { return w.deleteSnapshot(w.snap) },
	},
}

func (w *crashed) source() {
	if w.volume == nil {
		w.volume = w.mustCreate("source")
		w.plant(filepath.Join(w.shareDir, "source"))
	}
}

func failEach(t *testing.T, shares string, errno syscall.Errno, rpc struct {
	name   string
	before func(w *crashed, name string)
	do     func(w *crashed, name string) error
	left   func(name string) []string
	after  func(w *crashed, name string) error
}) {
	dir, err := os.MkdirTemp(shares, "f")
	must(t, err)
	defer os.RemoveAll(dir)
	w := &crashed{co: newCO(t, "unix://"+dir+"/csi.sock", localClass), dir: dir, shareDir: filepath.Join(dir, "a")}
	must(t, errors.Join(os.Mkdir(w.shareDir, 0o755), os.Mkdir(filepath.Join(dir, "b"), 0o755)))
	driver, err := crash.Start(w.command())
	must(t, err)
	defer func() {
		driver.Kill()
		_ = driver.Wait()
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("%s", log)
		}
	}()
	must(t, w.delete(w.mustCreate("first").GetVolumeId())) // makes the driver's directory
	wantShare(t, w.shareDir)
	for n := 1; !t.Failed(); n++ {
		name := fmt.Sprint("n", n)
		if rpc.before != nil {
			rpc.before(w, name)
		}
		driver.ArmFailure(n, errno)
		err := rpc.do(w, name)
		driver.Disarm()
		if !driver.Failed() {
			t.Logf("%d system calls", n-1)
			return
		}
		call := driver.Calls()[n-1]
		switch status.Code(err) {
		case codes.OK:
			if call.Name == "fsync" && !slices.ContainsFunc(driver.Calls()[n:], func(c crash.Call) bool { return repeats(c, call) }) {
				t.Error("success, and it was not tried again")
			}
		case codes.Aborted, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
		default:
			if rpc.left != nil {
				wantShare(t, w.shareDir, rpc.left(name)...)
			}
		}
		if t.Failed() {
			t.Errorf("%v failed, and the RPC returned %v", call, err)
			return
		}
		if err := again(func() error { return rpc.do(w, name) }); err != nil {
			t.Errorf("%v failed, and the RPC returned %v; the retry %v", call, err, err)
			return
		}
		if rpc.after != nil {
			must(t, rpc.after(w, name))
		}
	}
}

// repeats reports whether two calls are the same one. Temporary files have names with
// random suffixes.
func repeats(a, b crash.Call) bool {
	stem := func(c crash.Call) string { return strings.TrimSuffix(c.Object, filepath.Ext(c.Object)) }
	return a.Name == b.Name && (a.Object == b.Object || filepath.Base(filepath.Dir(a.Object)) == dirTmp && stem(a) == stem(b))
}
