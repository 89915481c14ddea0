package filepool_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// The kernel does not come back from a call, here because the file system is frozen,
// and nothing can kill it. The caller gets its answer, the volume stays locked, a pod
// that goes can go all the same, and when the kernel is done so is the lock.
func TestTeardownPassesAHungExpand(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mkfs.xfs", "blkid", "xfs_growfs")
	w := newCrashVolume(t, "xfs", 300<<20)
	locks := serveWithLocks(t, w)
	t.Cleanup(w.close)
	must(t, w.create())
	must(t, w.attach())
	must(t, w.stage())
	must(t, w.publish("b", false))
	must(t, w.expand())
	expand := func(timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		_, err := w.node.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
			VolumeId: w.id, VolumePath: w.staging(), CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * w.size}, VolumeCapability: w.capability(),
		})
		return err
	}
	parked := func() bool {
		return slices.ContainsFunc(locks(), func(lock map[string]string) bool { return lock["parked"] == "true" })
	}

	freeze(t, w.staging(), fiFreeze)
	thaw := sync.OnceFunc(func() { freeze(t, w.staging(), fiThaw) })
	defer thaw()
	for tries := 0; !parked(); tries++ { // a slow machine has not come to the kernel yet
		if err := expand(time.Second); err == nil || tries == 60 {
			t.Fatalf("nothing is parked, although the file system is frozen: %v", err)
		}
	}
	refused(t, w.publish("a", false), codes.Aborted, "is held by NodeExpandVolume")
	must(t, w.unpublish("b"))
	if !parked() {
		t.Error("the expansion is no longer parked")
	}

	thaw()
	must(t, w.again(func() error { return expand(2 * time.Minute) }))
	must(t, w.again(func() error { return w.publish("a", false) }))
	must(t, w.checkWritable("a"))
	must(t, w.unpublish("a"))
	must(t, w.unstage())
	must(t, w.detach())
	must(t, w.delete())
	w.checkNothingLeft()
}

// serveWithLocks serves the driver, and returns what reads its lock table from the debug page.
func serveWithLocks(t *testing.T, w *crashVolume) (locks func() []map[string]string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done, address := make(chan error, 1), make(chan string, 1)
	log := addressLog{testLog{t}, address}
	go func() {
		args := []string{"-endpoint", w.endpoint(), "-pool", w.pool(), "-node-id", "node", "-http", "127.0.0.1:0"}
		done <- run(ctx, args, func(string) string { return "" }, os.Stdout, log)
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	var at string
	select {
	case at = <-address:
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
	return func() []map[string]string {
		t.Helper()
		resp, err := http.Get("http://" + at + "/debug?format=json")
		must(t, err)
		defer resp.Body.Close()
		var page struct{ Locks []map[string]string }
		must(t, json.NewDecoder(resp.Body).Decode(&page))
		return page.Locks
	}
}

// addressLog passes on the log, and sends the address of the debug page.
type addressLog struct {
	testLog
	address chan<- string
}

var servingAt = regexp.MustCompile(`"serving health" http=(\S+)`)

func (l addressLog) Write(p []byte) (int, error) {
	if m := servingAt.FindSubmatch(p); m != nil {
		l.address <- string(m[1])
	}
	return l.testLog.Write(p)
}

func freeze(t *testing.T, dir string, what uint) {
	t.Helper()
	f, err := os.Open(filepath.Clean(dir))
	must(t, err)
	defer f.Close()
	if err := unix.IoctlSetInt(int(f.Fd()), what, 0); err != nil {
		t.Errorf("freeze or thaw: %v", err)
	}
}
