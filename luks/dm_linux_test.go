package luks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csitest/crash"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/mark"
	"github.com/csikit/csikit/internal/probe"
	"github.com/csikit/csikit/loopdev"
	"github.com/csikit/csikit/nodeops"
	"golang.org/x/sys/unix"
)

func init() {
	roles = append(roles, gate.WithRole("open", openRole))
}

// openRole opens the volume on the device of its first argument, as process of a driver.
func openRole() {
	// Package os makes additional calls when it first starts a program.
	err := exec.Command("true").Run()
	m, newErr := New(Config{Prefix: os.Args[2], PBKDF: cheap})
	err = errors.Join(err, newErr)
	if err == nil {
		fmt.Println("ready")
		_, _ = os.Stdin.Read(make([]byte, 1))
		_, err = m.Open(context.Background(), OpenRequest{VolumeID: "v", Device: os.Args[1], Passphrase: Passphrase("secret")})
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// newMapped is a fixture on a kernel with device-mapper. What is open at the end is an error.
func newMapped(t *testing.T, size int64) *fixture {
	t.Helper()
	gate.Root(t)
	gate.Modules(t, "dm_mod", "dm_crypt", "loop")
	gate.Tools(t, "cryptsetup", "dmsetup", "blkid")
	f := newFixture(t, size)
	t.Cleanup(func() {
		for _, id := range []string{"v", "w"} {
			if err := f.m.Close(context.Background(), id); err != nil {
				t.Error(err)
			}
		}
		out, err := exec.Command("dmsetup", "ls").CombinedOutput()
		if err != nil || bytes.Contains(out, []byte("csikit")) {
			t.Errorf("mappings are left: %v: %s", err, out)
		}
	})
	return f
}

func tool(t testing.TB, name string, args ...string) string {
	t.Helper()
	c := exec.Command(name, args...)
	c.Env = append(os.Environ(), "DM_DISABLE_UDEV=1")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (f *fixture) mustOpen(opened bool) Mapping {
	f.t.Helper()
	v, err := f.m.Open(f.t.Context(), f.request())
	ok(f.t, err)
	if v.Opened != opened {
		f.t.Errorf("opened by this call: %v, want %v", v.Opened, opened)
	}
	if again, err := f.m.Find("v"); err != nil || again.Path != v.Path || again.Size != v.Size {
		f.t.Errorf("found %+v, %v; want %+v", again, err, v)
	}
	return v
}

// wantNew checks a volume on which nothing has been stored yet: no mark is left, and the
// mapping reads as blank to nodeops.
func (f *fixture) wantNew(v Mapping) {
	f.t.Helper()
	d, err := openDevice(v.Path, v.Size)
	ok(f.t, err)
	defer d.File.Close()
	result, found, err := d.probe("v", func() {})
	if err != nil || result.Kind != probe.Blank || found.Foreign != "" {
		f.t.Errorf("the mapping holds %v, %q, %v", result, found.Foreign, err)
	}
	_, found, err = f.open().contents("v")
	if err != nil || len(found.Ours) > 0 {
		f.t.Errorf("places of the mark: %d, %v", len(found.Ours), err)
	}
}

func (f *fixture) wantNotOpen() {
	f.t.Helper()
	if v, err := f.m.Find("v"); !errors.Is(err, ErrNotOpen) {
		f.t.Errorf("it is open: %+v, %v", v, err)
	}
}

// A volume from its first stage to its last unstage, with nodeops.
func TestDMLifecycle(t *testing.T) {
	f := newMapped(t, 128*mib)
	n, err := nodeops.New(nodeops.Config{DeviceWait: -1})
	ok(t, err)
	staging := filepath.Join(t.TempDir(), "staging")
	ok(t, os.Mkdir(staging, 0o755))
	stage := func(v Mapping) {
		t.Helper()
		ok(t, n.StageFilesystem(t.Context(), nodeops.StageFilesystemRequest{VolumeID: "v", Device: nodeops.Device{Path: v.Path, Size: v.Size}, StagingTargetPath: staging, FSType: "ext4"}))
	}
	unstage := func() {
		t.Helper()
		ok(t, n.Unstage(t.Context(), nodeops.UnstageRequest{VolumeID: "v", StagingTargetPath: staging}))
	}
	t.Cleanup(func() { _ = unix.Unmount(staging, unix.MNT_DETACH) })

	v := f.mustOpen(true)
	f.wantNew(v)
	if v.Size != 112*mib {
		t.Errorf("it has %d bytes", v.Size)
	}
	f.mustOpen(false)
	stage(v)
	content := bytes.Repeat([]byte("text that must not be on the disk\n"), 1000)
	ok(t, os.WriteFile(staging+"/file", content, 0o600))
	f.mustOpen(false) // and does not change what is mounted
	wantKind(t, f.m.Close(t.Context(), "v"), csierr.Busy, "mounted or open")
	r := f.request()
	r.ReadOnly = true
	_, err = f.m.Open(t.Context(), r)
	wantKind(t, err, csierr.Conflict, "read-only")
	unstage()
	for range 2 {
		ok(t, f.m.Close(t.Context(), "v"))
		f.wantNotOpen()
	}
	if disk, err := os.ReadFile(f.image); err != nil || bytes.Contains(disk, content[:30]) || bytes.Contains(disk, []byte("secret")) {
		t.Errorf("the image is not encrypted (%v)", err)
	}

	r = f.request()
	r.Passphrase = Passphrase("wrong")
	_, err = f.m.Open(t.Context(), r)
	wantKind(t, err, csierr.Unauthenticated, "passphrase")
	f.wantNotOpen()
	r = f.request()
	r.VolumeID = "w"
	_, err = f.m.Open(t.Context(), r)
	wantKind(t, err, csierr.Precondition, `label "v"`)

	// The key changes while it is open; the device grows.
	v = f.mustOpen(true)
	stage(v)
	ok(t, f.change("secret", "next"))
	ok(t, os.Truncate(f.image, 256*mib))
	_, err = f.dev.Resize()
	ok(t, err)
	_, err = f.m.Resize(t.Context(), "v", nil)
	wantKind(t, err, csierr.Invalid, "passphrase")
	_, err = f.m.Resize(t.Context(), "v", Passphrase("secret"))
	wantKind(t, err, csierr.Unauthenticated, "passphrase")
	for _, p := range []string{"next", ""} { // the second time there is nothing to do
		size, err := f.m.Resize(t.Context(), "v", Passphrase(p))
		if err != nil || size != 240*mib {
			t.Errorf("resized to %d: %v", size, err)
		}
	}
	unstage()
	ok(t, f.m.Close(t.Context(), "v"))
	_, err = f.m.Resize(t.Context(), "v", Passphrase("next"))
	if !errors.Is(err, ErrNotOpen) {
		t.Error(err)
	}

	// A copy of it, as another volume, while the source is open too.
	r = f.request()
	r.Passphrase = Passphrase("next")
	v, err = f.m.Open(t.Context(), r)
	ok(t, err)
	restored := filepath.Join(t.TempDir(), "copy")
	tool(t, "cp", "--sparse=always", f.image, restored)
	dev, err := loopdev.Attach(t.Context(), restored)
	ok(t, err)
	defer dev.Detach(context.Background())
	c := OpenRequest{VolumeID: "w", Device: dev.Path, MustHoldData: true, Passphrase: Passphrase("next")}
	_, err = f.m.Open(t.Context(), c)
	wantKind(t, err, csierr.Precondition, `label "v"`)
	c.Copy, c.Passphrase = true, Passphrase("secret")
	_, err = f.m.Open(t.Context(), c)
	wantKind(t, err, csierr.Unauthenticated, "passphrase")
	c.Passphrase = Passphrase("next")
	for _, opened := range []bool{true, false} {
		w, err := f.m.Open(t.Context(), c)
		if err != nil || w.Opened != opened || w.Path == v.Path {
			t.Errorf("%+v, %v", w, err)
		}
		c.Copy = false // it has its own label now
	}
	ok(t, f.m.Close(t.Context(), "w"))
	c.ReadOnly = true
	w, err := f.m.Open(t.Context(), c)
	if err != nil || !w.ReadOnly {
		t.Errorf("%+v, %v", w, err)
	}
	if err := os.WriteFile(w.Path, []byte("x"), 0); err == nil {
		t.Error("the read-only mapping is written to")
	}
	ok(t, f.m.Close(t.Context(), "w"))
	stage(v)
	if got, err := os.ReadFile(staging + "/file"); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the file holds %.50q, %v", got, err)
	}
	unstage()
}

// A mapping of the right name is used only if it is of this volume on this device
// (cloudscale-ch/csi-cloudscale#153).
func TestDMForeignMapping(t *testing.T) {
	f := newMapped(t, 64*mib)
	v := f.mustOpen(true)
	ok(t, f.m.Close(t.Context(), "v"))
	h, _, err := f.open().contents("v")
	ok(t, err)
	other := newFixture(t, 64*mib)
	linear := fmt.Sprintf("0 1000 linear %s 0", other.dev.Path)
	for _, uuid := range []string{"", "LVM-x", "CRYPT-PLAIN-" + v.Name, "CRYPT-LUKS2-0123-" + v.Name, h.mapperUUID(v.Name)} {
		args := []string{"create", v.Name, "--table", linear}
		if uuid != "" {
			args = append(args, "--uuid", uuid)
		}
		tool(t, "dmsetup", args...)
		_, err := f.m.Open(t.Context(), f.request())
		wantKind(t, err, csierr.Precondition, "mapping "+v.Name+" exists")
		if !strings.HasPrefix(uuid, "CRYPT-LUKS2-") {
			wantKind(t, f.m.Close(t.Context(), "v"), csierr.Precondition, "not of LUKS2")
		}
		_, err = f.m.Find("v")
		ok(t, err)
		tool(t, "dmsetup", "remove", v.Name)
	}
	// On a device that is not formatted yet.
	tool(t, "dmsetup", "create", v.Name, "--table", linear)
	blank := newFixture(t, 64*mib)
	r := blank.request()
	_, err = f.m.Open(t.Context(), r)
	wantKind(t, err, csierr.Precondition, "close it first")
	tool(t, "dmsetup", "remove", v.Name)

	// One whose creation was interrupted, which cryptsetup does not close.
	for _, do := range []func(){func() { f.mustOpen(true) }, func() { ok(t, f.m.Close(t.Context(), "v")) }} {
		ok(t, f.m.Close(t.Context(), "v"))
		tool(t, "dmsetup", "create", v.Name, "--notable", "--uuid", h.mapperUUID(v.Name))
		do()
	}
	f.wantNotOpen()
	// One whose node is missing.
	v = f.mustOpen(true)
	ok(t, os.Remove(v.Path))
	f.mustOpen(false)
	if _, err := os.Stat(v.Path); err != nil {
		t.Error(err)
	}
}

// What a failed call has opened is closed, and what was open stays.
func TestDMUndo(t *testing.T) {
	f := newMapped(t, 64*mib)
	path := os.Getenv("PATH")
	fake(t, "dmsetup", "exit 1") // no node can be created
	real, err := exec.LookPath("cryptsetup")
	ok(t, err)
	fake(t, "cryptsetup", fmt.Sprintf(`%s "$@" || exit; case $1 in open) rm -f /dev/mapper/%s;; esac`, real, nameOf(f.m.prefix, "v")))
	_, err = f.m.Open(t.Context(), f.request())
	wantKind(t, err, csierr.Uncertain, "dmsetup mknodes")
	f.wantNotOpen()
	t.Setenv("PATH", path)
	v := f.mustOpen(true)
	f.wantNew(v)
	ok(t, f.m.Close(t.Context(), "v"))

	// The context ends while cryptsetup opens, before and after the mapping exists.
	for _, script := range []string{`echo >%[1]s/started; sleep 1000`, `%[2]s "$@"; echo >%[1]s/started; sleep 1000`} {
		dir := t.TempDir()
		ok(t, unix.Mkfifo(filepath.Join(dir, "started"), 0o600))
		fake(t, "cryptsetup", `case $1 in open) ;; *) exec `+real+` "$@";; esac; `+fmt.Sprintf(script+"\n: %[1]s %[2]s", dir, real))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { _, err := f.m.Open(ctx, f.request()); ended <- err }()
		_, err := os.ReadFile(filepath.Join(dir, "started"))
		ok(t, err)
		cancel()
		err = <-ended
		if csierr.IsFinal(err) || !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		var pending interface{ Pending() <-chan struct{} }
		if errors.As(err, &pending) {
			<-pending.Pending()
		}
		f.wantNotOpen()
		t.Setenv("PATH", path)
		f.mustOpen(true)
		ok(t, f.m.Close(t.Context(), "v"))
	}
}

// The process is killed, with its programs, before each of its state-changing calls: the next
// process converges, and nothing is left after the close.
func TestDMKilled(t *testing.T) {
	gate.Root(t)
	for _, formatted := range []bool{false, true} {
		t.Run(fmt.Sprintf("formatted=%v", formatted), func(t *testing.T) {
			calls := killOpen(t, 0, formatted).Calls()
			killed := 0
			for n := 1; n <= len(calls); n++ {
				// The writes of zeros are all alike.
				if n > 1 && n < len(calls) && calls[n-1].Name == calls[n-2].Name && n%50 != 0 && os.Getenv("CSIKIT_TORTURE") != "1" {
					continue
				}
				killed++
				t.Run(fmt.Sprint(n), func(t *testing.T) { killOpen(t, n, formatted) })
			}
			if killed < 5 {
				t.Errorf("only %d of %d calls", killed, len(calls))
			}
			t.Logf("# %s: killed before %d of %d calls", t.Name(), killed, len(calls))
		})
	}
}

// killOpen kills the process that opens the volume before its n-th call, and checks that the
// next one converges.
func killOpen(t *testing.T, n int, formatted bool) *crash.Process {
	t.Helper()
	f := newMapped(t, 64*mib)
	if formatted {
		f.mustOpen(true)
		ok(t, f.m.Close(t.Context(), "v"))
	}
	cmd := gate.RoleCommand(context.Background(), "open", f.dev.Path, f.m.prefix)
	in, err := cmd.StdinPipe()
	ok(t, err)
	out, w, err := os.Pipe()
	ok(t, err)
	defer out.Close()
	cmd.Stdout, cmd.Stderr = w, w
	p, err := crash.Start(cmd, crash.WithKillTree())
	w.Close()
	ok(t, err)
	line := make([]byte, 1000)
	if k, _ := out.Read(line); !strings.HasPrefix(string(line[:k]), "ready") {
		t.Fatalf("the process says %s", line[:k])
	}
	p.Arm(n)
	ok(t, in.Close())
	if err := p.Wait(); err != nil && !p.Killed() {
		k, _ := out.Read(line)
		t.Fatalf("%v: %s", err, line[:k])
	}
	if n > 0 && !p.Killed() {
		t.Error("it was not killed")
	}
	v, err := f.m.Open(t.Context(), f.request())
	ok(t, err)
	f.wantNew(v)
	ok(t, f.m.Close(t.Context(), "v"))
	f.wantNotOpen()
	return p
}

// cryptsetup itself is killed before each of its state-changing calls.
func TestDMCryptsetupKilled(t *testing.T) {
	gate.Root(t)
	for _, action := range []string{"open", "close", "resize"} {
		t.Run(action, func(t *testing.T) {
			f := newMapped(t, 64*mib)
			v := f.mustOpen(true)
			ok(t, f.m.Close(t.Context(), "v"))
			size := int64(64 * mib)
			everyCall(t, 3, func(t *testing.T, n int) *crash.Process {
				args := []string{"open", "--type", "luks2", "--batch-mode", "--key-file", "-", f.dev.Path, v.Name}
				switch action {
				case "close":
					f.mustOpen(true)
					args = []string{"close", v.Name}
				case "resize":
					f.mustOpen(true)
					size += mib
					ok(t, os.Truncate(f.image, size))
					_, err := f.dev.Resize()
					ok(t, err)
					args = []string{"resize", "--batch-mode", "--key-file", "-", v.Name}
				}
				p := startArmed(t, "secret", n, args...)
				if err := p.Wait(); err != nil && !p.Killed() {
					t.Fatal(err)
				}
				if action == "resize" {
					got, err := f.m.Resize(t.Context(), "v", Passphrase("secret"))
					if err != nil || got != size-dataOffset {
						t.Errorf("resized to %d, %v", got, err)
					}
				} else {
					// As the next stage, or as the next unstage.
					if action == "open" || n%2 == 0 {
						v, err := f.m.Open(t.Context(), f.request())
						ok(t, err)
						f.readable(v)
					}
				}
				ok(t, f.m.Close(t.Context(), "v"))
				f.wantNotOpen()
				return p
			})
		})
	}
}

// readable checks that the mapping responds.
func (f *fixture) readable(v Mapping) {
	f.t.Helper()
	file, err := os.Open(v.Path)
	ok(f.t, err)
	defer file.Close()
	if _, err := file.ReadAt(make([]byte, mark.Size), 0); err != nil {
		f.t.Error(err)
	}
}
