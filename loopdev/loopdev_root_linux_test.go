package loopdev_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/oldkernel"
	"github.com/csikit/csikit/loopdev"
	"golang.org/x/sys/unix"
)

const mib = 1 << 20

func TestMain(m *testing.M) {
	oldkernel.FromEnv()
	gate.Main(m, gate.WithRole("attach", func() {
		// Starts when standard input ends, so that several start simultaneously.
		_, _ = io.Copy(io.Discard, os.Stdin)
		d, err := loopdev.Attach(context.Background(), os.Args[1])
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(d.Path)
	}), gate.WithRole("hold lock", func() {
		f, err := os.Open(os.Args[1])
		if err == nil {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		}
		fmt.Println(err)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}))
}

// Linux before 5.8 has no LOOP_CONFIGURE.
func TestOldKernels(t *testing.T) {
	gate.Root(t)
	oldkernel.Run(t, "^Test[^O]", "4.18")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func image(t *testing.T, name string, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	must(t, err)
	must(t, errors.Join(f.Truncate(size), f.Close()))
	return path
}

func attach(t *testing.T, path string, opts ...loopdev.Option) *loopdev.Device {
	t.Helper()
	d, err := loopdev.Attach(t.Context(), path, opts...)
	must(t, err)
	t.Cleanup(func() {
		if err := d.Detach(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d
}

func wantAttached(t *testing.T, d *loopdev.Device, want bool) {
	t.Helper()
	all, err := loopdev.List()
	must(t, err)
	got := slices.ContainsFunc(all, func(o loopdev.Device) bool {
		return o.Number == d.Number && o.BackingInode == d.BackingInode && o.BackingDev == d.BackingDev
	})
	if got != want {
		t.Errorf("%s of %s attached: %v, want %v", d.Path, d.Backing, got, want)
	}
}

func TestAttach(t *testing.T) {
	gate.Root(t)
	path := image(t, "image", 4*mib)
	d := attach(t, path)
	var stat unix.Stat_t
	must(t, unix.Stat(path, &stat))
	var node unix.Stat_t
	must(t, unix.Stat(d.Path, &node))
	want := loopdev.Device{
		Path: fmt.Sprintf("/dev/loop%d", d.Number), Number: d.Number, Rdev: uint64(node.Rdev),
		Backing: path, BackingDev: uint64(stat.Dev), BackingInode: stat.Ino, Size: 4 * mib,
		DirectIO: d.DirectIO, // depends on the file system
	}
	if *d != want {
		t.Errorf("got  %+v\nwant %+v", *d, want)
	}

	again, err := loopdev.Attach(t.Context(), path)
	must(t, err)
	if *again != *d {
		t.Errorf("attached again as %+v, first %+v", *again, *d)
	}
	found, err := loopdev.Find(path)
	must(t, err)
	if *found != *d {
		t.Errorf("found %+v, attached %+v", *found, *d)
	}

	// What is written to the device is in the image.
	dev, err := os.OpenFile(d.Path, os.O_WRONLY|unix.O_SYNC, 0)
	must(t, err)
	_, err = dev.WriteAt([]byte("hello"), 8192)
	must(t, errors.Join(err, dev.Close()))
	data, err := os.ReadFile(path)
	must(t, err)
	if string(data[8192:8197]) != "hello" {
		t.Errorf("image holds %q", data[8192:8197])
	}

	must(t, d.Detach(t.Context()))
	wantAttached(t, d, false)
	must(t, d.Detach(t.Context()))
	if _, err := loopdev.Find(path); !errors.Is(err, loopdev.ErrNotAttached) {
		t.Errorf("Find after Detach: %v", err)
	}
	if _, err := d.Resize(); !errors.Is(err, loopdev.ErrNotAttached) {
		t.Errorf("Resize after Detach: %v", err)
	}
}

func TestAttachRefuses(t *testing.T) {
	gate.Root(t)
	dir := t.TempDir()
	path := image(t, "image", mib)
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	must(t, os.Symlink(path, link))
	must(t, unix.Mkfifo(fifo, 0o600))
	for _, test := range []struct {
		path string
		want error
	}{
		{filepath.Join(dir, "missing"), fs.ErrNotExist},
		{link, unix.ELOOP},
		{dir, unix.EISDIR},
		{fifo, unix.EINVAL},
		{"/dev/null", unix.EINVAL},
	} {
		for _, opts := range [][]loopdev.Option{nil, {loopdev.WithReadOnly()}} {
			if test.path == dir && opts != nil {
				test.want = unix.EINVAL
			}
			_, err := loopdev.Attach(t.Context(), test.path, opts...)
			var e *loopdev.Error
			if !errors.Is(err, test.want) || !errors.As(err, &e) || e.Op != "attach" || e.Path != test.path {
				t.Errorf("Attach(%s): %v, want %v", test.path, err, test.want)
			}
		}
	}
	if _, err := loopdev.Find(link); !errors.Is(err, unix.EINVAL) {
		t.Errorf("Find of a symbolic link: %v", err)
	}
	if _, err := loopdev.Find(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Find of a missing file: %v", err)
	}
}

func TestWithReadOnly(t *testing.T) {
	gate.Root(t)
	path := image(t, "image", mib)
	d := attach(t, path, loopdev.WithReadOnly())
	if !d.ReadOnly {
		t.Error("device is writable")
	}
	again, err := loopdev.Attach(t.Context(), path, loopdev.WithReadOnly())
	must(t, err)
	if *again != *d {
		t.Errorf("attached again as %+v, first %+v", *again, *d)
	}
	if _, err := loopdev.Attach(t.Context(), path); !errors.Is(err, loopdev.ErrConflict) {
		t.Errorf("Attach for writing of an image attached read-only: %v", err)
	}
	wantAttached(t, d, true)
	must(t, d.Detach(t.Context()))

	d = attach(t, path)
	if d.ReadOnly {
		t.Error("device is read-only")
	}
	if _, err := loopdev.Attach(t.Context(), path, loopdev.WithReadOnly()); !errors.Is(err, loopdev.ErrConflict) {
		t.Errorf("Attach for reading of an image attached writable: %v", err)
	}
}

func setReadOnly(t *testing.T, d *loopdev.Device) {
	t.Helper()
	dev, err := os.Open(d.Path)
	must(t, err)
	must(t, errors.Join(unix.IoctlSetPointerInt(int(dev.Fd()), unix.BLKROSET, 1), dev.Close()))
}

// BLKROSET outlives the detach: it must affect neither the next image on that number
// nor a repeated Attach of the same one.
func TestReadOnlyFlagOfPreviousUserIsCleared(t *testing.T) {
	gate.Root(t)
	d := attach(t, image(t, "first", mib))
	setReadOnly(t, d)
	again, err := loopdev.Attach(t.Context(), d.Backing)
	must(t, err)
	if again.ReadOnly || again.Path != d.Path {
		t.Errorf("attached again as %+v", *again)
	}
	setReadOnly(t, d)
	must(t, d.Detach(t.Context()))

	// Attach until the number is reused.
	for i := range 20 {
		next := attach(t, image(t, fmt.Sprint(i), mib))
		if next.ReadOnly {
			t.Fatalf("%s is read-only", next.Path)
		}
		if next.Path == d.Path {
			dev, err := os.OpenFile(next.Path, os.O_WRONLY, 0)
			must(t, err)
			_, err = dev.WriteAt(make([]byte, 4096), 0)
			must(t, errors.Join(err, dev.Sync(), dev.Close()))
			return
		}
	}
	t.Skipf("another process keeps %s", d.Path)
}

func TestIdentityIsTheInode(t *testing.T) {
	gate.Root(t)
	path := image(t, "image", mib)
	d := attach(t, path)
	link := filepath.Join(filepath.Dir(path), "hard link")
	must(t, os.Link(path, link))
	for _, find := range []func() (*loopdev.Device, error){
		func() (*loopdev.Device, error) { return loopdev.Find(link) },
		func() (*loopdev.Device, error) { return loopdev.Attach(t.Context(), link) },
	} {
		if found, err := find(); err != nil || found.Path != d.Path {
			t.Errorf("by hard link: %+v, %v; want %s", found, err, d.Path)
		}
	}
	renamed := filepath.Join(filepath.Dir(path), "renamed")
	must(t, os.Rename(path, renamed))
	if found, err := loopdev.Find(renamed); err != nil || found.Path != d.Path || found.Backing != renamed {
		t.Errorf("after rename: %+v, %v; want %s", found, err, d.Path)
	}
	// Another file at the old path is another image.
	must(t, os.WriteFile(path, make([]byte, mib), 0o600))
	if _, err := loopdev.Find(path); !errors.Is(err, loopdev.ErrNotAttached) {
		t.Errorf("Find of another file at the old path: %v", err)
	}
	other := attach(t, path)
	if other.Path == d.Path {
		t.Errorf("another file got the device %s of the first", d.Path)
	}
}

func TestDeletedImage(t *testing.T) {
	gate.Root(t)
	path := image(t, "image", mib)
	d := attach(t, path)
	must(t, os.Remove(path))
	all, err := loopdev.List()
	must(t, err)
	i := slices.IndexFunc(all, func(o loopdev.Device) bool { return o.Deleted && o.Backing == path })
	if i < 0 {
		t.Fatalf("List has no device of the deleted image: %+v", all)
	}
	if all[i].Path != d.Path {
		t.Errorf("List has it as %+v, want %s", all[i], d.Path)
	}
	must(t, all[i].Detach(t.Context()))
	wantAttached(t, d, false)
}

// The name of a file may end like that of a deleted one in sysfs.
func TestImageNamedDeleted(t *testing.T) {
	gate.Root(t)
	path := image(t, "image (deleted)", mib)
	if d := attach(t, path); d.Deleted || d.Backing != path {
		t.Errorf("attached as %+v", *d)
	}
}

func TestResize(t *testing.T) {
	gate.Root(t)
	path := image(t, "image", mib)
	d := attach(t, path)
	must(t, os.Truncate(path, 3*mib))
	if again, err := loopdev.Find(path); err != nil || again.Size != mib {
		t.Errorf("before Resize: %+v, %v", again, err)
	}
	for range 2 {
		if size, err := d.Resize(); err != nil || size != 3*mib {
			t.Errorf("Resize: %d, %v", size, err)
		}
	}
	// A repeated Attach does that too. A device has whole sectors.
	must(t, os.Truncate(path, 5*mib+100))
	if again, err := loopdev.Attach(t.Context(), path); err != nil || again.Size != 5*mib {
		t.Errorf("Attach after the image grew: %+v, %v", again, err)
	}
}

func TestDetachBusy(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mkfs.ext4")
	d := attach(t, image(t, "image", 8*mib))
	if out, err := exec.Command("mkfs.ext4", "-q", d.Path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	point := t.TempDir()
	must(t, unix.Mount(d.Path, point, "ext4", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(point, 0) })

	if err := d.Detach(t.Context()); !errors.Is(err, loopdev.ErrBusy) {
		t.Errorf("Detach while mounted: %v", err)
	}
	// It was not changed: it survives the unmount.
	must(t, unix.Unmount(point, 0))
	wantAttached(t, d, true)

	dev, err := os.Open(d.Path)
	must(t, err)
	defer dev.Close()
	if err := d.Detach(t.Context()); !errors.Is(err, loopdev.ErrBusy) {
		t.Errorf("Detach while open: %v", err)
	}
	wantAttached(t, d, true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Detach(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, loopdev.ErrBusy) {
		t.Errorf("Detach while open, with a context that has ended: %v", err)
	}
	must(t, dev.Close())
	must(t, d.Detach(t.Context()))
	wantAttached(t, d, false)
}

// A detach of an open device is pending in the kernel. Attach revokes it, so that the device
// persists after the last close.
func TestAttachRevokesPendingDetach(t *testing.T) {
	gate.Root(t)
	d := attach(t, image(t, "image", mib))
	dev, err := os.Open(d.Path)
	must(t, err)
	defer dev.Close()
	if err := d.Detach(t.Context()); !errors.Is(err, loopdev.ErrBusy) {
		t.Fatalf("Detach while open: %v", err)
	}
	if found, err := loopdev.Find(d.Backing); err != nil || !found.Detaching {
		t.Errorf("found while the detach is pending: %+v, %v", found, err)
	}
	again, err := loopdev.Attach(t.Context(), d.Backing)
	must(t, err)
	if again.Detaching {
		t.Error("attached again, and still detaching")
	}
	if again.Path != d.Path {
		t.Errorf("attached again as %s, first %s", again.Path, d.Path)
	}
	must(t, dev.Close())
	wantAttached(t, d, true)
}

// A stale Device must not detach the image that its number serves now.
func TestStaleDevice(t *testing.T) {
	gate.Root(t)
	stale := attach(t, image(t, "first", mib))
	must(t, stale.Detach(t.Context()))
	d := attach(t, image(t, "second", mib))
	forged := *stale
	forged.Number, forged.Path = d.Number, d.Path
	must(t, forged.Detach(t.Context()))
	wantAttached(t, d, true)
	if _, err := forged.Resize(); !errors.Is(err, loopdev.ErrNotAttached) {
		t.Errorf("Resize of a stale device: %v", err)
	}
}

func TestForeignOffset(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "losetup")
	path := image(t, "image", mib)
	out, err := exec.Command("losetup", "--show", "-f", "-o", "4096", path).Output()
	must(t, err)
	name := strings.TrimSpace(string(out))
	_, err = loopdev.Attach(t.Context(), path)
	if !errors.Is(err, loopdev.ErrConflict) || !strings.Contains(fmt.Sprint(err), name) {
		t.Errorf("Attach of an image attached with an offset: %v", err)
	}
	d, err := loopdev.Find(path)
	must(t, err)
	must(t, d.Detach(t.Context()))
	wantAttached(t, d, false)
}

// The lock is on a descriptor that the device does not keep.
func TestLockIsFreeAfterAttach(t *testing.T) {
	gate.Root(t)
	path := image(t, "image", mib)
	attach(t, path)
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
}

func TestAttachWaitsForTheLock(t *testing.T) {
	gate.Root(t)
	path := image(t, "image", mib)
	holder := gate.RoleCommand(t.Context(), "hold lock", path)
	stdin, err := holder.StdinPipe()
	must(t, err)
	stdout, err := holder.StdoutPipe()
	must(t, err)
	must(t, holder.Start())
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "<nil>\n" {
		t.Fatalf("holder of the lock said %q, %v", line, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := loopdev.Attach(ctx, path); !errors.Is(err, context.Canceled) {
		t.Errorf("Attach of a locked image: %v", err)
	}
	must(t, stdin.Close())
	attach(t, path)
	must(t, holder.Wait())
}

func TestAttachConcurrently(t *testing.T) {
	gate.Root(t)
	t.Run("goroutines", func(t *testing.T) {
		path := image(t, "image", mib)
		paths := make([]string, 8)
		var wg sync.WaitGroup
		for i := range paths {
			wg.Go(func() {
				d, err := loopdev.Attach(t.Context(), path)
				if err != nil {
					t.Error(err)
					return
				}
				paths[i] = d.Path
			})
		}
		wg.Wait()
		wantOne(t, path, paths)
	})
	t.Run("processes", func(t *testing.T) {
		path := image(t, "image", mib)
		start, release, err := os.Pipe()
		must(t, err)
		defer release.Close()
		cmds := make([]*exec.Cmd, 4)
		outs := make([]strings.Builder, len(cmds))
		for i := range cmds {
			cmds[i] = gate.RoleCommand(t.Context(), "attach", path)
			cmds[i].Stdin, cmds[i].Stdout = start, &outs[i]
			must(t, cmds[i].Start())
		}
		must(t, errors.Join(start.Close(), release.Close()))
		paths := make([]string, len(cmds))
		for i, cmd := range cmds {
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, outs[i].String())
			}
			paths[i] = strings.TrimSpace(outs[i].String())
		}
		wantOne(t, path, paths)
	})
}

// wantOne fails the test unless path has one device, which is each of paths, and
// detaches it.
func wantOne(t *testing.T, path string, paths []string) {
	t.Helper()
	all, err := loopdev.List()
	must(t, err)
	var ours []string
	for _, d := range all {
		if d.Backing == path {
			ours = append(ours, d.Path)
			must(t, d.Detach(t.Context()))
		}
	}
	paths = slices.Clone(paths)
	slices.Sort(paths)
	if paths = slices.Compact(paths); len(ours) != 1 || !slices.Equal(ours, paths) {
		t.Errorf("devices of the image: %v; returned: %v", ours, paths)
	}
}

func TestAttachManyFilesConcurrently(t *testing.T) {
	gate.Root(t)
	var mu sync.Mutex
	owner := map[string]string{}
	var wg sync.WaitGroup
	for i := range 24 {
		path := image(t, fmt.Sprint(i), mib)
		wg.Go(func() {
			d, err := loopdev.Attach(t.Context(), path)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			if other, taken := owner[d.Path]; taken || d.Backing != path {
				t.Errorf("%s went to %s and to %s", d.Path, other, path)
			}
			owner[d.Path] = path
			mu.Unlock()
		})
	}
	wg.Wait()
	for _, path := range owner {
		wg.Go(func() {
			d, err := loopdev.Find(path)
			if err == nil {
				err = d.Detach(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(owner) != 24 {
		t.Errorf("%d devices, want 24", len(owner))
	}
}

// A container without the host's /dev: the error says what to mount.
func TestMissingNode(t *testing.T) {
	gate.Root(t)
	attached := attach(t, image(t, "attached", mib))
	path := image(t, "image", mib)
	must(t, unix.Mount("tmpfs", "/dev", "tmpfs", 0, ""))
	mounted := true
	unmount := func() {
		if mounted {
			mounted = false
			must(t, unix.Unmount("/dev", unix.MNT_DETACH))
		}
	}
	defer unmount()
	const hint = "the host's /dev"
	if _, err := loopdev.Attach(t.Context(), path); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), hint) {
		t.Errorf("Attach without /dev/loop-control: %v", err)
	}
	must(t, unix.Mknod("/dev/loop-control", unix.S_IFCHR|0o600, int(unix.Mkdev(10, 237))))
	for name, err := range map[string]error{
		"Attach of a new image":     second(loopdev.Attach(t.Context(), path)),
		"Attach of an attached one": second(loopdev.Attach(t.Context(), attached.Backing)),
		"Find":                      second(loopdev.Find(attached.Backing)),
		"Resize":                    second(attached.Resize()),
		"Detach":                    attached.Detach(t.Context()),
	} {
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), hint) {
			t.Errorf("%s without the node: %v", name, err)
		}
	}
	unmount()
	wantAttached(t, attached, true)
}

func second[T any](_ T, err error) error { return err }
