package exportdir

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/csikit/csikit/examples/nfsdriver/driver"
	"github.com/csikit/csikit/examples/nfsdriver/drivertest"
)

func newShares(t *testing.T) string {
	t.Helper()
	return drivertest.NewShares(t)
}

const localExports = "server:/a server:/b"

// localProvider has a directory in place of the server.
func localProvider(shares string) *Provider {
	return &Provider{fsType: "overlay", local: shares}
}

// localMain runs the driver with a directory in place of the server.
func localMain() { serve(localProvider(os.Getenv(drivertest.SharesVariable))) }

// nfsMain runs the driver.
func nfsMain() { serve(New()) }

func serve(p *Provider) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := driver.Run(ctx, p, os.Args[1:], os.Getenv, os.Stdout, os.Stderr); err != nil {
		slog.Error("serve", "error", err)
		os.Exit(1)
	}
}

// startLocal serves the driver in this process until the test ends, and returns its
// endpoint.
func startLocal(t *testing.T, shares string, args ...string) string {
	t.Helper()
	return drivertest.Serve(t, localProvider(shares), append([]string{"-exports", localExports}, args...)...)
}

// testLog writes the driver's log to the test's, and expects all responses to be valid.
type testLog = drivertest.Log

func must(t *testing.T, err error) {
	t.Helper()
	drivertest.Must(t, err)
}

// wantShare fails if a share contains anything but these volumes and their records. It
// waits until the trash is empty.
func wantShare(t *testing.T, shareDir string, subDirs ...string) {
	t.Helper()
	list := func(dir string) (names []string) {
		entries, err := os.ReadDir(filepath.Join(shareDir, dir))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	if got := slices.DeleteFunc(list("."), func(s string) bool { return s == storeName }); !slices.Equal(got, subDirs) {
		t.Errorf("the share holds %q, want %q", got, subDirs)
	}
	wantTrash(t, shareDir)
	tmp, err := filepath.Glob(filepath.Join(shareDir, storeName, dirTmp, "*.*")) // records of a process that was killed: an hour old, they go
	must(t, err)
	for _, name := range tmp {
		must(t, os.Remove(name))
	}
	tmp, err = filepath.Glob(filepath.Join(shareDir, storeName, dirTmp, "*"))
	must(t, err)
	for _, name := range tmp { // copies that were refused: an hour old, they go
		info, err := os.Stat(name)
		must(t, err)
		if time.Since(info.ModTime()) > abandonedAfter/2 {
			must(t, os.RemoveAll(name))
		}
	}
	for dir, want := range map[string]int{dirVolumes: len(subDirs), dirNames: len(subDirs), dirTmp: 0, dirSnapshots: 0} {
		if got := list(storeName + "/" + dir); len(got) != want {
			t.Errorf("%s holds %q, want %d", dir, got, want)
		}
	}
}

// wantTrash waits until the trash is empty.
func wantTrash(t *testing.T, shareDir string) {
	t.Helper()
	for { // or the test times out
		entries, err := os.ReadDir(filepath.Join(shareDir, storeName, dirTrash))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if len(entries) == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
