package luks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csitest/crash"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/mark"
	"github.com/csikit/csikit/loopdev"
	"golang.org/x/sys/unix"
)

const mib = 1 << 20

// fixture is a volume on a loop device.
type fixture struct {
	t     *testing.T
	m     *Mapper
	image string
	dev   *loopdev.Device
}

func newFixture(t *testing.T, size int64) *fixture {
	t.Helper()
	gate.Root(t)
	gate.Tools(t, "cryptsetup", "blkid")
	f := &fixture{t: t, image: filepath.Join(t.TempDir(), "image")}
	ok(t, os.WriteFile(f.image, nil, 0o600))
	ok(t, os.Truncate(f.image, size))
	var err error
	f.dev, err = loopdev.Attach(t.Context(), f.image)
	ok(t, err)
	t.Cleanup(func() {
		if err := f.dev.Detach(context.Background()); err != nil {
			t.Error(err)
		}
	})
	f.m = newMapper(t)
	return f
}

func newMapper(t testing.TB) *Mapper {
	t.Helper()
	m, err := New(Config{Prefix: fmt.Sprintf("csikit%d", os.Getpid()), PBKDF: cheap})
	ok(t, err)
	return m
}

func (f *fixture) request() OpenRequest {
	return OpenRequest{VolumeID: "v", Device: f.dev.Path, Passphrase: Passphrase("secret")}
}

func (f *fixture) open() device {
	f.t.Helper()
	d, err := openDevice(f.dev.Path, 0)
	ok(f.t, err)
	f.t.Cleanup(func() { d.File.Close() })
	return d
}

// format formats the device and leaves the mark.
func (f *fixture) format(r OpenRequest) error { return f.m.format(f.t.Context(), r, f.open()) }

func (f *fixture) put(at int64, content []byte) {
	f.t.Helper()
	d := f.open()
	ok(f.t, d.WriteBlocks(map[int64][]byte{at &^ (mark.Size - 1): append(make([]byte, at&(mark.Size-1)), content...)}))
}

// complete clears the mark, as after the first open.
func (f *fixture) complete() {
	f.t.Helper()
	d := f.open()
	_, found, err := d.contents("v")
	ok(f.t, err)
	ok(f.t, d.WriteBlocks(found.Zeros()))
}

func wantKind(t testing.TB, err error, kind csierr.Kind, text string) {
	t.Helper()
	if csierr.KindOf(err) != kind || !strings.Contains(fmt.Sprint(err), text) {
		t.Errorf("%v, want %v with %q", err, kind, text)
	}
}

// Only what is blank is formatted, and nothing else is changed (longhorn/longhorn#10416).
func TestFormatRefuses(t *testing.T) {
	const size = 64 * mib
	for _, c := range []struct {
		name string
		do   func(f *fixture, r *OpenRequest)
		text string
	}{
		{"file system", func(f *fixture, _ *OpenRequest) { f.put(1080, []byte("\x53\xef")) }, "ext"},
		{"unknown data", func(f *fixture, _ *OpenRequest) { f.put(3*mib, []byte("data")) }, "unknown kind"},
		{"the end of LUKS", func(f *fixture, _ *OpenRequest) { f.put(32<<10, []byte(secondMagic)) }, "crypto_LUKS"},
		{"data in a place of the mark", func(f *fixture, _ *OpenRequest) { f.put(mark.Places(size)[0], []byte("data")) }, "unknown kind"},
		{"another volume's mark", func(f *fixture, _ *OpenRequest) { f.putMark(mark.New("w", markType, size)) }, `volume "w"`},
		{"mark of mkfs, and debris", func(f *fixture, _ *OpenRequest) {
			f.putMark(mark.New("v", "ext4", size))
			f.put(mib, []byte("data"))
		}, "unknown kind"},
		{"file system and mark", func(f *fixture, _ *OpenRequest) {
			f.putMark(mark.New("v", markType, size))
			f.put(0, []byte("XFSB"))
		}, "xfs"},
		{"read-only", func(_ *fixture, r *OpenRequest) { r.ReadOnly = true }, "read-only"},
		{"used before", func(_ *fixture, r *OpenRequest) { r.MustHoldData = true }, "holds data"},
		{"copy", func(_ *fixture, r *OpenRequest) { r.Copy = true }, "holds data"},
		{"copy of an interrupted format", func(f *fixture, r *OpenRequest) {
			f.putMark(mark.New("v", markType, size))
			r.Copy = true
		}, "holds data"},
		{"other size", func(_ *fixture, r *OpenRequest) { r.Size = size + 512 }, "another disk"},
		{"half a header", func(f *fixture, _ *OpenRequest) { f.put(0, []byte(firstMagic+"\x00\x02")) }, "damaged"},
		{"LUKS1", func(f *fixture, _ *OpenRequest) { f.put(0, []byte(firstMagic+"\x00\x01")) }, "not LUKS2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, size)
			r := f.request()
			c.do(f, &r)
			before, err := os.ReadFile(f.image)
			ok(t, err)
			_, err = f.m.Open(t.Context(), r)
			kind := csierr.Precondition
			if c.name == "half a header" {
				kind = csierr.DataLoss
			}
			wantKind(t, err, kind, c.text)
			if after, err := os.ReadFile(f.image); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the device was changed (%v)", err)
			}
		})
	}
	t.Run("too small", func(t *testing.T) {
		f := newFixture(t, minSize-512)
		_, err := f.m.Open(t.Context(), f.request())
		wantKind(t, err, csierr.Precondition, "needs")
	})
	t.Run("in use", func(t *testing.T) {
		f := newFixture(t, size)
		d := f.open()
		release, err := d.Hold()
		ok(t, err)
		defer release()
		_, err = f.m.Open(t.Context(), f.request())
		wantKind(t, err, csierr.Busy, "in use")
	})
	t.Run("no device", func(t *testing.T) {
		f := newFixture(t, size)
		for _, path := range []string{"/dev/csikit-none", f.image} {
			r := f.request()
			r.Device = path
			_, err := f.m.Open(t.Context(), r)
			wantKind(t, err, csierr.Precondition, path)
		}
	})
}

func (f *fixture) putMark(m mark.Mark) {
	f.t.Helper()
	ok(f.t, f.open().WriteBlocks(m.Blocks()))
}

// A format that fails before it writes leaves a blank device, and one that fails later a mark.
func TestFormatFails(t *testing.T) {
	f := newFixture(t, 64*mib)
	f.m.pbkdf = []string{"--no-such-option"}
	wantKind(t, f.format(f.request()), csierr.Unknown, "no-such-option")
	content, err := os.ReadFile(f.image)
	ok(t, err)
	if len(bytes.Trim(content, "\x00")) > 0 {
		t.Error("the device is not blank")
	}
	f.m.pbkdf = cheap
	fake(t, "cryptsetup", `dd if=/dev/urandom of="$(eval echo \${$#})" bs=1M count=1 conv=fsync 2>/dev/null; exit 1`)
	wantKind(t, f.format(f.request()), csierr.Uncertain, "status 1")
	if _, found, err := f.open().contents("v"); !found.Whole(markType) {
		t.Errorf("there is no mark: %v", err)
	}
}

// luksFormat does not write to the mark, on a device of any size and sector.
func TestMarkSurvivesFormat(t *testing.T) {
	for _, size := range []int64{minSize, minSize + 512, 100*mib + 4096, 1 << 30, 4 << 40} {
		f := newFixture(t, size)
		for range 2 { // it can be repeated
			ok(t, f.format(f.request()))
			h, found, err := f.open().contents("v")
			if err != nil || !found.Whole(markType) || h.label != "v" || len(h.slots) != 1 {
				t.Errorf("%d bytes: %+v, %v", size, h, err)
			}
		}
		if slices.Min(mark.Places(size)) < dataOffset {
			t.Errorf("%d bytes: the mark is at %v", size, mark.Places(size))
		}
	}
}

// startArmed starts a program whose first call counts: a shell waits for arm to return before it
// becomes that program.
func startArmed(t *testing.T, stdin string, n int, args ...string) *crash.Process {
	t.Helper()
	c := exec.Command("sh", append([]string{"-c", `read _ <&3; exec 3<&-; exec cryptsetup "$@"`, "sh"}, args...)...)
	input, err := memory("stdin", Passphrase(stdin))
	ok(t, err)
	defer input.Close()
	c.Stdin = input
	c.Env = append(os.Environ(), "DM_DISABLE_UDEV=1")
	wait, in, err := os.Pipe()
	ok(t, err)
	c.ExtraFiles = []*os.File{wait}
	p, err := crash.Start(c)
	ok(t, err)
	ok(t, wait.Close())
	p.Arm(n)
	ok(t, in.Close())
	return p
}

// everyCall runs test with a program that is killed before its n-th state-changing call, for
// every n; for every third one unless it is for torture.
func everyCall(t *testing.T, least int, test func(t *testing.T, n int) *crash.Process) {
	t.Helper()
	gate.Root(t)
	step := 3
	if os.Getenv("CSIKIT_TORTURE") == "1" {
		step = 1
	}
	calls, done := 0, false
	for n := 1; !done && n < 10000; n += step {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			p := test(t, n)
			calls, done = len(p.Calls()), !p.Killed()
		})
		done = done || t.Failed()
	}
	if calls < least {
		t.Errorf("only %d calls", calls)
	}
	t.Logf("# %s: killed before every %d of %d calls", t.Name(), step, calls)
}

// luksFormat is killed before each of its writes: the format is repeated.
func TestFormatKilled(t *testing.T) {
	everyCall(t, 10, func(t *testing.T, n int) *crash.Process {
		f := newFixture(t, 64*mib)
		f.putMark(mark.New("v", markType, 64*mib))
		p := startArmed(t, "secret", n, append([]string{"luksFormat", "--type", "luks2", "--batch-mode", "--key-file", "-", "--offset", "32768", "--label", "v", f.dev.Path}, cheap...)...)
		if err := p.Wait(); err != nil && !p.Killed() {
			t.Fatal(err)
		}
		ok(t, f.format(f.request()))
		f.complete()
		wantOpens(f, "secret", true)
		return p
	})
}

func wantOpens(f *fixture, passphrase string, want bool) {
	f.t.Helper()
	d := f.open()
	h, _, err := d.contents("v")
	ok(f.t, err)
	slots, err := f.m.slotsOf(f.t.Context(), d, h, Passphrase(passphrase))
	ok(f.t, err)
	if len(slots) > 0 != want {
		f.t.Errorf("passphrase %q opens slots %v of %v, want any: %v", passphrase, slots, h.slots, want)
	}
}

func (f *fixture) change(old, next string) error {
	return f.m.ChangePassphrase(f.t.Context(), ChangeRequest{VolumeID: "v", Device: f.dev.Path, Old: Passphrase(old), New: Passphrase(next)})
}

func newVolume(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t, 64*mib)
	ok(t, f.format(f.request()))
	f.complete()
	return f
}

func TestChangePassphrase(t *testing.T) {
	f := newVolume(t)
	wantKind(t, f.change("wrong", "next"), csierr.Unauthenticated, "neither")
	wantKind(t, f.change("secret", "secret"), csierr.Invalid, "different")
	wantKind(t, f.change("secret", ""), csierr.Invalid, "different")
	// PBKDF2 takes these for the same passphrase.
	wantKind(t, f.change("secret", "secret\x00"), csierr.Invalid, "same key")
	wantOpens(f, "secret", true)
	// A key of the operator stays.
	d := f.open()
	h, _, err := d.contents("v")
	ok(t, err)
	_, err = f.m.add(t.Context(), d, h, ChangeRequest{Old: Passphrase("secret"), New: Passphrase("recovery\n")})
	ok(t, err)
	for range 2 {
		ok(t, f.change("secret", "next"))
		wantOpens(f, "secret", false)
		wantOpens(f, "next", true)
		wantOpens(f, "recovery\n", true)
	}
	wantKind(t, f.change("secret", "other"), csierr.Unauthenticated, "neither")

	r := ChangeRequest{VolumeID: "w", Device: f.dev.Path, Old: Passphrase("next"), New: Passphrase("x")}
	wantKind(t, f.m.ChangePassphrase(t.Context(), r), csierr.Precondition, `label "v"`)
	f.putMark(mark.New("v", markType, 64*mib))
	wantKind(t, f.change("next", "x"), csierr.Precondition, "not formatted completely")
}

// Open and ChangePassphrase return the same for a header that cannot be used.
func TestHeaderErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*fixture)
		kind csierr.Kind
		text string
	}{
		{"damaged", func(f *fixture) { f.put(0, []byte(firstMagic+"\x00\x02")) }, csierr.DataLoss, "damaged"},
		{"LUKS1", func(f *fixture) { f.put(0, []byte(firstMagic+"\x00\x01")) }, csierr.Precondition, "cryptsetup convert"},
		{"unreadable", func(f *fixture) { ok(f.t, os.Truncate(f.image, 0)) }, csierr.Unknown, "input/output error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, 64*mib)
			c.do(f)
			_, err := f.m.Open(t.Context(), f.request())
			wantKind(t, err, c.kind, c.text)
			wantKind(t, f.change("secret", "next"), c.kind, c.text)
		})
	}
}

// The volume is open to the old or the new passphrase whenever the change is killed, and a
// repeat completes it.
func TestChangePassphraseKilled(t *testing.T) {
	converge := func(f *fixture) {
		f.t.Helper()
		d := f.open()
		h, _, err := d.contents("v")
		ok(f.t, err)
		old, err := f.m.slotsOf(f.t.Context(), d, h, Passphrase("secret"))
		ok(f.t, err)
		next, err := f.m.slotsOf(f.t.Context(), d, h, Passphrase("next"))
		ok(f.t, err)
		if len(old)+len(next) == 0 {
			f.t.Error("no passphrase opens the volume")
		}
		ok(f.t, f.change("secret", "next"))
		wantOpens(f, "secret", false)
		wantOpens(f, "next", true)
		if h, _, err = d.contents("v"); err != nil || len(h.slots) > 1 {
			f.t.Logf("a slot that no passphrase opens is left: %v, %v", h.slots, err)
		}
	}
	t.Run("add", func(t *testing.T) {
		everyCall(t, 5, func(t *testing.T, n int) *crash.Process {
			f := newVolume(t)
			key := filepath.Join(t.TempDir(), "key")
			ok(t, os.WriteFile(key, []byte("next"), 0o600))
			p := startArmed(t, "secret", n, append([]string{"luksAddKey", "--type", "luks2", "--batch-mode", "--key-file", "-", "--key-slot", "1", f.dev.Path, key}, cheap...)...)
			if err := p.Wait(); err != nil && !p.Killed() {
				t.Fatal(err)
			}
			converge(f)
			return p
		})
	})
	t.Run("remove", func(t *testing.T) {
		everyCall(t, 5, func(t *testing.T, n int) *crash.Process {
			f := newVolume(t)
			d := f.open()
			h, _, err := d.contents("v")
			ok(t, err)
			_, err = f.m.add(t.Context(), d, h, ChangeRequest{Old: Passphrase("secret"), New: Passphrase("next")})
			ok(t, err)
			p := startArmed(t, "next", n, "luksKillSlot", "--batch-mode", "--key-file", "-", f.dev.Path, "0")
			if err := p.Wait(); err != nil && !p.Killed() {
				t.Fatal(err)
			}
			converge(f)
			return p
		})
	})
}

// A call that the caller abandons is killed; the next one converges.
func TestFormatCancelled(t *testing.T) {
	f := newFixture(t, 64*mib)
	dir := t.TempDir()
	ok(t, unix.Mkfifo(filepath.Join(dir, "started"), 0o600))
	path := os.Getenv("PATH")
	fake(t, "cryptsetup", fmt.Sprintf(`echo >%s/started; sleep 1000`, dir))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { _, err := f.m.Open(ctx, f.request()); ended <- err }()
	_, err := os.ReadFile(filepath.Join(dir, "started"))
	ok(t, err)
	cancel()
	err = <-ended
	var pending interface{ Pending() <-chan struct{} }
	if csierr.IsFinal(err) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if errors.As(err, &pending) {
		<-pending.Pending()
	}
	if calls := f.m.InFlight(); len(calls) > 0 {
		t.Errorf("in flight: %v", calls)
	}
	t.Setenv("PATH", path)
	ok(t, f.format(f.request()))
}
