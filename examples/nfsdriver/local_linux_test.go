package main

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/csikit/csikit/csitest/gate"
	"golang.org/x/sys/unix"
)

// Without a server, a directory replaces it: the controller works in it instead of
// mounting the export, and a node mounts a volume with a helper as usual. The helper
// mounts an overlay with an empty lower layer, because like NFS it shows the given
// source. All mounts of a volume are of one overlay: two would not see each other's
// changes.
const helperScript = `#!/bin/sh
dir="$CSIKIT_TEST_SHARES/${1#*:}"
[ -d "$dir" ] || { echo "mount.nfs: mounting $1 failed, reason given by server: No such file or directory"; exit 32; }
[ -z "$CSIKIT_TEST_HANG" ] || exec sleep 1000
all="$CSIKIT_TEST_SHARES/.work"
id="$(stat -c %i "$dir")" && exec 9>"$all/lock" && flock 9 && new=$(mktemp -d "$all/XXXXXX") || exit 1
of="workdir=$all/$id-"
at=$(awk -v of="$of" 'index($0, of) { print $5; exit }' /proc/self/mountinfo)
if [ -n "$at" ] && mount -i -n --bind "$at" "$new" 2>/dev/null; then # or it was unmounted concurrently
	awk -v of="$of" -v new="$new" '$5 == new && index($0, of) { ok = 1 } END { exit !ok }' /proc/self/mountinfo || { umount -i -n "$new"; at=; }
else
	at=
fi
if [ -z "$at" ]; then
	work=$(mktemp -d "$all/$id-XXXXXX") && mkdir "$work/lower" "$work/work" &&
	mount -i -n -t overlay -o "userxattr,lowerdir=$work/lower,upperdir=$dir,workdir=$work/work" "$1" "$new" || exit 1
fi
flags=remount,bind,rw,suid,dev,exec,relatime
case ",$4," in *,ro,*) flags=$flags,ro ;; esac
case ",$4," in *,suid,*) ;; *,nosuid,*) flags=$flags,nosuid ;; esac
case ",$4," in *,nodev,*) flags=$flags,nodev ;; esac
case ",$4," in *,noexec,*) flags=$flags,noexec ;; esac
case ",$4," in *,noatime,*) flags=$flags,noatime ;; esac
mount -i -n -o "$flags" "$new" && exec mount -i -n --move "$new" "$2"
`

// newShares returns a directory that replaces a server with the shares /a and /b.
func newShares(t *testing.T) string {
	t.Helper()
	gate.UserNS(t)
	dir := t.TempDir()
	must(t, unix.Mount("server", dir, "tmpfs", 0, "")) // an overlay cannot write on an overlay
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	for _, d := range []string{"a", "b", ".work", ".bin"} {
		must(t, os.Mkdir(filepath.Join(dir, d), 0o755))
	}
	must(t, os.WriteFile(filepath.Join(dir, ".bin", "mount.overlay"), []byte(helperScript), 0o755))
	t.Setenv("CSIKIT_TEST_SHARES", dir)
	t.Setenv("PATH", filepath.Join(dir, ".bin")+":"+os.Getenv("PATH"))
	return dir
}

const localExports = "server:/a server:/b"

// localMain runs the driver with a directory in place of the server.
func localMain() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	cfg, err := parseConfig(os.Args[1:], os.Getenv, os.Stdout)
	if err == nil {
		cfg.fsType, cfg.local = "overlay", os.Getenv("CSIKIT_TEST_SHARES")
		err = drive(ctx, cfg, newLogger(cfg, os.Stderr))
	}
	if err != nil {
		slog.Error("drive", "error", err)
		os.Exit(1)
	}
}

// startLocal serves the driver in this process until the test ends, and returns its
// endpoint.
func startLocal(t *testing.T, shares string, args ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nfs")
	must(t, err)
	endpoint := "unix://" + filepath.Join(dir, "csi.sock")
	cfg, err := parseConfig(append([]string{"-endpoint", endpoint, "-node-id", "node", "-log-level", "debug", "-exports", localExports}, args...),
		func(string) string { return "" }, os.Stdout)
	must(t, err)
	cfg.fsType, cfg.local = "overlay", shares
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- drive(ctx, cfg, newLogger(cfg, testLog{t})) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		must(t, os.RemoveAll(dir))
	})
	return endpoint
}

// testLog writes the driver's log to the test's, and expects all responses to be valid.
type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s", p)
	if bytes.Contains(p, []byte("response breaks rules of CSI")) {
		l.t.Error("the driver broke the rules of CSI")
	}
	return len(p), nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantShare fails if a share contains anything but these volumes and their records. It
// waits until the trash is empty.
func wantShare(t *testing.T, share string, subDirs ...string) {
	t.Helper()
	list := func(dir string) (names []string) {
		entries, err := os.ReadDir(filepath.Join(share, dir))
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
	wantTrash(t, share)
	tmp, err := filepath.Glob(filepath.Join(share, storeName, dirTmp, "*.*")) // records of a process that was killed: an hour old, they go
	must(t, err)
	for _, name := range tmp {
		must(t, os.Remove(name))
	}
	tmp, err = filepath.Glob(filepath.Join(share, storeName, dirTmp, "*"))
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
func wantTrash(t *testing.T, share string) {
	t.Helper()
	for { // or the test times out
		entries, err := os.ReadDir(filepath.Join(share, storeName, dirTrash))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if len(entries) == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
