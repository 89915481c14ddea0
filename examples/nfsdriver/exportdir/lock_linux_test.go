package exportdir

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csikit/csikit/breaker"
	"github.com/csikit/csikit/csitest/gate"
	"google.golang.org/grpc/codes"
)

// holderMain is a controller that holds the lock on an export until it is killed.
func holderMain() {
	x := newExports(localDirs(os.Args[1]), 0, slog.New(slog.DiscardHandler))
	err := x.Use(testExport, func(s *store) error {
		if err := s.create(); err != nil {
			return err
		}
		fmt.Println("at work")
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	})
	fmt.Println(err)
}

// With two controllers on one export, as after a pod was deleted by force, the second
// one is refused all changes until the first one has exited or is killed.
func TestTwoControllers(t *testing.T) {
	c, shareDir := newLocalController(t, testExport)
	v := c.mustCreate("pvc-1")
	id, err := c.snapshot("snap", v.GetVolumeId())
	must(t, err)
	for _, how := range []string{"killed", "finished"} {
		other := gate.RoleCommand(context.Background(), "holder", filepath.Dir(shareDir))
		in, err := other.StdinPipe()
		must(t, err)
		out, err := other.StdoutPipe()
		must(t, err)
		must(t, other.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil || line != "at work\n" {
			t.Fatalf("the other controller says %q (%v)", line, err)
		}
		_, err = c.create("pvc-2")
		refused(t, err, codes.Aborted, "another controller")
		_, err = c.snapshot("snap-2", v.GetVolumeId())
		refused(t, err, codes.Aborted, "another controller")
		_, err = c.expand(v.GetVolumeId(), 100, 0)
		refused(t, err, codes.Aborted, "another controller")
		refused(t, c.delete(v.GetVolumeId()), codes.Aborted, "another controller")
		refused(t, c.deleteSnapshot(id), codes.Aborted, "another controller")
		if page, _, err := c.list().ListVolumes(t.Context(), "", 0); err != nil || len(page) != 1 {
			t.Errorf("listed are %v (%v)", page, err)
		}
		if how == "killed" {
			must(t, other.Process.Kill())
		} else {
			must(t, in.Close())
		}
		_ = other.Wait()
		must(t, c.delete(c.mustCreate("pvc-2").GetVolumeId()))
	}
	must(t, c.deleteSnapshot(id))
	must(t, c.delete(v.GetVolumeId()))
	wantShare(t, shareDir)
}

// One controller may mount a share with different options, and work in both mounts.
func TestTwoMountsOfOneShare(t *testing.T) {
	c, shareDir := newLocalController(t)
	x := c.backend().exports
	must(t, x.Use(testExport, func(a *store) error {
		must(t, a.create())
		e := testExport
		e.Options = "vers=4.2"
		must(t, x.Use(e, func(b *store) error { return b.create() }))
		return a.acquireLock()
	}))
	wantShare(t, shareDir)
}

// A restarted server responds, but grants no locks for a while: a call that needs one
// returns, and the server does not count as unresponsive.
func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, shareDir := newLocalController(t, testExport)
		x := c.backend().exports
		grace := make(chan struct{})
		requests := 0
		x.tryLock = func(f *os.File) error {
			requests++
			<-grace
			return lockFile(f)
		}
		start := time.Now()
		for range 2 {
			_, err := c.create("pvc-1")
			refused(t, err, codes.Unavailable, "did not grant a lock")
		}
		synctest.Wait()
		if took := time.Since(start); took != 2*x.lockTimeout || requests != 1 {
			t.Errorf("it took %v and %d requests for the lock", took, requests)
		}
		if rows := c.backend().servers.Snapshot(); len(rows) != 1 || rows[0].State != breaker.Closed || rows[0].Parked != 0 {
			t.Errorf("the servers are %+v", rows)
		}
		if page, _, err := c.list().ListVolumes(t.Context(), "", 0); err != nil || len(page) != 0 {
			t.Errorf("listed are %v (%v)", page, err)
		}
		close(grace)
		synctest.Wait()
		must(t, c.delete(c.mustCreate("pvc-1").GetVolumeId()))
		for c.backend().cleans() > 0 {
			time.Sleep(time.Millisecond)
		}
		x.Close()
		synctest.Wait()
		wantShare(t, shareDir)
		if s := x.shareDir(testExport); s.lock != nil || s.stores != 0 {
			t.Errorf("the lock is still held: %+v", s)
		}
	})
}
