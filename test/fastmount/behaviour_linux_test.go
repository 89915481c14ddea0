package fastmount_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/nodeops/fastmount"
	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"
	utilexec "k8s.io/utils/exec"
)

// noHelper fails the test when something goes to mount(8).
type noHelper struct {
	mount.Interface
	t *testing.T
}

func (n noHelper) MountSensitive(source, target, _ string, _, _ []string) error {
	n.t.Errorf("mount(8) was called for %s on %s", source, target)
	return errors.New("no mount(8) here")
}

func ours(t *testing.T) mount.MounterForceUnmounter {
	return fastmount.New(fastmount.WithFallback(noHelper{t: t})).(mount.MounterForceUnmounter)
}

// Writers that try without a pause never succeed, from before the mount to after
// its removal. The file exists only in the source, so a writer that finds it goes
// through the mount.
func TestReadOnlyBindIsNeverWritable(t *testing.T) {
	gate.UserNS(t)
	w := newWorld(t, ours(t))
	for _, bind := range []string{"bind", "rbind"} {
		t.Run(bind, func(t *testing.T) {
			var stop, wrote atomic.Bool
			var refused, other atomic.Int64
			var writers sync.WaitGroup
			defer writers.Wait()
			defer stop.Store(true)
			for range 2 {
				writers.Go(func() {
					for !stop.Load() {
						fd, err := unix.Open(w.p("dst/marker"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
						switch err {
						case nil:
							unix.Close(fd)
							wrote.Store(true)
						case unix.EROFS:
							refused.Add(1)
						case unix.ENOENT: // not mounted
						default:
							other.Add(1)
						}
					}
				})
			}
			for range 300 {
				before := refused.Load()
				ok(t, w.Mount(w.p("src"), w.p("dst"), "", []string{bind, "ro"}))
				for refused.Load() == before && !wrote.Load() { // each mount is seen by a writer
					runtime.Gosched()
				}
				// A writer may be inside its open.
				for err := w.Unmount(w.p("dst")); err != nil; err = w.Unmount(w.p("dst")) {
					if !errors.Is(err, unix.EBUSY) {
						t.Fatal(err)
					}
				}
			}
			if wrote.Load() {
				t.Error("the file was opened for writing")
			}
			if other.Load() > 0 {
				t.Errorf("%d errors other than EROFS", other.Load())
			}
		})
	}
}

func TestListDecodes(t *testing.T) {
	gate.UserNS(t)
	w := newWorld(t, ours(t))
	for _, name := range []string{"a b", "tab\t", "new\nline", `back\slash`, `\040`, "#", "ü"} {
		ok(t, os.Mkdir(w.p(name), 0o755))
		ok(t, w.Mount(name, w.p(name), "tmpfs", nil))
		points, err := w.List()
		ok(t, err)
		last := points[len(points)-1]
		if last.Device != name || last.Path != w.p(name) || last.Type != "tmpfs" || last.Opts[0] != "rw" {
			t.Errorf("%q: listed as %+v", name, last)
		}
		if device, _, err := mount.GetDeviceNameFromMount(w, w.p(name)); device != name || err != nil {
			t.Errorf("%q: device %q, %v", name, device, err)
		}
	}
}

func TestSensitiveOptionsAreInNoError(t *testing.T) {
	gate.UserNS(t)
	const secret = "hunter2"
	w := newWorld(t, ours(t))
	ok(t, unix.Mount("tmpfs", w.p("dst2"), "tmpfs", 0, ""))
	for name, err := range map[string]error{
		"unknown option": w.MountSensitive("tmpfs", w.p("dst"), "tmpfs", []string{"ro"}, []string{"password=" + secret}),
		"bad value":      w.MountSensitive("tmpfs", w.p("dst"), "tmpfs", nil, []string{"size=" + secret}),
		"unclosed quote": w.MountSensitive("tmpfs", w.p("dst"), "tmpfs", nil, []string{`a="` + secret}),
		"NUL":            w.MountSensitive("tmpfs", w.p("dst"), "tmpfs", nil, []string{secret + "\x00"}),
		"bind":           w.MountSensitive(w.p("none"), w.p("dst"), "", []string{"bind"}, []string{"password=" + secret}),
		"bind, quote":    w.MountSensitive(w.p("src"), w.p("dst"), "", []string{"bind"}, []string{`"` + secret}),
		"remount":        w.MountSensitive("tmpfs", w.p("dst2"), "tmpfs", []string{"remount"}, []string{"password=" + secret}),
		"no systemd":     w.MountSensitiveWithoutSystemd("tmpfs", w.p("dst"), "tmpfs", nil, []string{secret}),
		"no flags":       w.MountSensitiveWithoutSystemdWithMountFlags("tmpfs", w.p("dst"), "tmpfs", nil, []string{secret}, nil),
	} {
		var e *fastmount.Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), "<masked>") {
			t.Errorf("%s: error %v", name, err)
			continue
		}
		walk(err, func(err error) {
			if text := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(text, secret) {
				t.Errorf("%s: %T contains the secret: %s", name, err, text)
			}
		})
	}
	// The errno survives, for those who branch on it.
	err := w.MountSensitive("tmpfs", w.p("dst"), "tmpfs", nil, []string{"size=" + secret})
	if !errors.Is(err, unix.EINVAL) {
		t.Errorf("%v is not EINVAL", err)
	}
	// Without a secret the details are there.
	err = w.Mount("tmpfs", w.p("dst"), "tmpfs", []string{"size=" + secret})
	if !strings.Contains(err.Error(), "Bad value for 'size'") {
		t.Errorf("%v does not quote the kernel", err)
	}
}

func walk(err error, see func(error)) {
	if err == nil {
		return
	}
	see(err)
	switch u := err.(type) {
	case interface{ Unwrap() error }:
		walk(u.Unwrap(), see)
	case interface{ Unwrap() []error }:
		for _, err := range u.Unwrap() {
			walk(err, see)
		}
	}
}

// A server that does not answer, and one that is gone, are mounts like any other.
func TestDeadServer(t *testing.T) {
	gate.UserNS(t)
	w := newWorld(t, ours(t))
	for _, c := range []struct {
		name   string
		closed bool
	}{{"silent", false}, {"gone", true}} {
		t.Run(c.name, func(t *testing.T) {
			fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Skipf("no FUSE: %v", err)
			}
			closeFUSE := sync.OnceFunc(func() { unix.Close(fd) })
			defer closeFUSE()
			if err := unix.Mount("fuse", w.p("dst"), "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
				t.Skipf("no FUSE: %v", err)
			}
			if c.closed {
				closeFUSE()
			}
			if is, err := w.IsMountPoint(w.p("dst")); !is || err != nil {
				t.Errorf("mount point: %v, %v", is, err)
			}
			if not, err := w.IsLikelyNotMountPoint(w.p("link")); not || err != nil {
				t.Errorf("likely not a mount point: %v, %v", not, err)
			}
			if refs, err := w.GetMountRefs(w.p("dst")); len(refs) > 0 || err != nil {
				t.Errorf("references: %v, %v", refs, err)
			}
			if c.closed { // a lookup below a silent one waits
				if refs, err := w.GetMountRefs(w.p("dst/sub")); len(refs) > 0 || err != nil {
					t.Errorf("references below: %v, %v", refs, err)
				}
			}
			ok(t, w.Unmount(w.p("dst")))
			if is, err := w.IsMountPoint(w.p("dst")); is || err != nil {
				t.Errorf("mount point after unmount: %v, %v", is, err)
			}
		})
	}
}

// The mount table changes constantly while it is read, and no call fails.
func TestConcurrentUse(t *testing.T) {
	gate.UserNS(t)
	w := newWorld(t, ours(t))
	var all sync.WaitGroup
	for i := range 8 {
		target := w.p(fmt.Sprint("t", i))
		ok(t, os.Mkdir(target, 0o755))
		all.Go(func() {
			for range 50 {
				check := func(err error) {
					if err != nil {
						t.Error(err)
					}
				}
				check(w.Mount(w.p("src"), target, "", []string{"bind", "ro"}))
				_, err := w.List()
				check(err)
				_, err = w.GetMountRefs(target)
				check(err)
				check(w.Unmount(target))
			}
		})
	}
	all.Wait()
}

// call is what a fallback was asked.
type call struct {
	method, source, target, fsType string
	opts, sensitive, flags         []string
}

type recorder struct {
	mount.Interface
	calls []call
}

func (r *recorder) MountSensitive(source, target, fsType string, opts, sensitive []string) error {
	r.calls = append(r.calls, call{"sensitive", source, target, fsType, opts, sensitive, nil})
	return nil
}

func (r *recorder) MountSensitiveWithoutSystemd(source, target, fsType string, opts, sensitive []string) error {
	r.calls = append(r.calls, call{"no systemd", source, target, fsType, opts, sensitive, nil})
	return nil
}

func (r *recorder) MountSensitiveWithoutSystemdWithMountFlags(source, target, fsType string, opts, sensitive, flags []string) error {
	r.calls = append(r.calls, call{"flags", source, target, fsType, opts, sensitive, flags})
	return nil
}

// What needs mount(8) gets there as it was given.
func TestFallback(t *testing.T) {
	opts, secret := []string{"vers=4.2", "a,b"}, []string{"password=x"}
	var r recorder
	m := fastmount.New(fastmount.WithFallback(&r))
	ok(t, m.Mount("server:/a", "/t", "nfs", opts))
	ok(t, m.MountSensitive("server:/a", "/t", "nfs", opts, secret))
	ok(t, m.MountSensitiveWithoutSystemd("server:/a", "/t", "nfs", opts, secret))
	ok(t, m.MountSensitiveWithoutSystemdWithMountFlags("server:/a", "/t", "nfs", opts, secret, nil))
	ok(t, m.MountSensitiveWithoutSystemdWithMountFlags("/a", "/t", "", []string{"bind"}, secret, []string{"--no-canonicalize"}))
	want := []call{
		{"sensitive", "server:/a", "/t", "nfs", opts, nil, nil},
		{"sensitive", "server:/a", "/t", "nfs", opts, secret, nil},
		{"no systemd", "server:/a", "/t", "nfs", opts, secret, nil},
		{"flags", "server:/a", "/t", "nfs", opts, secret, nil},
		{"flags", "/a", "/t", "", []string{"bind"}, secret, []string{"--no-canonicalize"}},
	}
	if got, want := fmt.Sprintf("%q", r.calls), fmt.Sprintf("%q", want); got != want {
		t.Errorf("calls\n%s\nwant\n%s", got, want)
	}
}

// The two lines of a driver that uses mount-utils: format and mount, and clean up.
func TestFormatAndMount(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mkfs.ext4", "blkid", "fsck")
	dev := loopDevice(t, "")
	w := newWorld(t, ours(t))
	m := mount.NewSafeFormatAndMount(w.MounterForceUnmounter, utilexec.New())

	err := m.FormatAndMount(dev, w.p("dst"), "ext4", []string{"ro"})
	var e mount.MountError
	if !errors.As(err, &e) || e.Type != mount.UnformattedReadOnly {
		t.Errorf("read-only on a blank device: %v", err)
	}
	for range 2 { // blank, then formatted
		ok(t, m.FormatAndMount(dev, w.p("dst"), "ext4", []string{"noatime"}))
		ok(t, os.WriteFile(w.p("dst/data"), []byte("data"), 0o600))
		ok(t, w.Mount(w.p("dst"), w.p("dst2"), "", []string{"bind", "ro"}))
		if data, err := os.ReadFile(w.p("dst2/data")); string(data) != "data" || err != nil {
			t.Errorf("data: %q, %v", data, err)
		}
		if name, n, err := mount.GetDeviceNameFromMount(w, w.p("dst")); name != dev || n != 2 || err != nil {
			t.Errorf("device %s, %d references, %v", name, n, err)
		}
		for _, target := range []string{"dst2", "dst"} {
			ok(t, mount.CleanupMountPoint(w.p(target), w, true))
			ok(t, os.Mkdir(w.p(target), 0o755))
		}
	}
	err = m.FormatAndMount(dev, w.p("dst"), "xfs", nil)
	if !errors.As(err, &e) || e.Type != mount.FilesystemMismatch || !strings.Contains(e.Message, filepath.Base(w.p("dst"))) {
		t.Errorf("wrong type: %v", err)
	}
	w.show()
	if len(w.said) > 0 {
		t.Errorf("left behind: %v", w.said)
	}
}
