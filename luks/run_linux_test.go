package luks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csitest/gate"
	"golang.org/x/sys/unix"
)

var cheap = []string{"--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"}

// fake puts a program in front of those on PATH.
func fake(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	ok(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// A passphrase is on standard input and in an inherited file, byte for byte, and nowhere else.
func TestPassphraseOfPrograms(t *testing.T) {
	dir := t.TempDir()
	fake(t, "cryptsetup", fmt.Sprintf(`
cat /proc/self/cmdline /proc/$$/cmdline >%[1]s/argv
cat /proc/$$/environ >%[1]s/env
cat >%[1]s/stdin
cat %[2]s >%[1]s/key
cat %[1]s/stdin %[1]s/key # as a program that is to be debugged could
exit 2`, dir, newKey))
	var log bytes.Buffer
	m, err := New(Config{Prefix: "test", Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	ok(t, err)
	t.Setenv("SECRET_OF_THE_DRIVER", "token")
	old, next := Passphrase("first\n \xff"), Passphrase("second\n")
	err = m.cryptsetup(t.Context(), program{args: []string{"luksAddKey", newKey}, stdin: old, key: next})
	if !errors.Is(err, csierr.Unauthenticated) {
		t.Errorf("status 2: %v", err)
	}
	status, output, err := m.run(t.Context(), program{name: "cryptsetup", args: []string{"x"}, stdin: old, key: next})
	if err != nil || status != 2 || output != hidden+hidden {
		t.Errorf("status %d, output %q, %v", status, output, err)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		ok(t, err)
		return string(b)
	}
	if got := read("stdin"); got != string(old) {
		t.Errorf("standard input: %q", got)
	}
	if got := read("key"); got != string(next) {
		t.Errorf("key file: %q", got)
	}
	for what, text := range map[string]string{"arguments": read("argv"), "environment": read("env"), "log": log.String(), "error": fmt.Sprint(err)} {
		for _, secret := range []string{"first", "second", "token"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s: %q", what, text)
			}
		}
	}
	if !strings.Contains(log.String(), "luksAddKey") {
		t.Errorf("the log has no command line: %s", log.String())
	}
}

func TestStatus(t *testing.T) {
	m, err := New(Config{Prefix: "test"})
	ok(t, err)
	for status, kind := range map[int]csierr.Kind{1: csierr.Unknown, 2: csierr.Unauthenticated, 3: csierr.Unknown, 4: csierr.Precondition, 5: csierr.Busy} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			fake(t, "cryptsetup", fmt.Sprintf("echo why >&2; exit %d", status))
			err := m.cryptsetup(t.Context(), program{args: []string{"open"}})
			if csierr.KindOf(err) != kind || status != 2 && !strings.Contains(err.Error(), "why") {
				t.Errorf("%v, want %v", err, kind)
			}
		})
	}
	t.Setenv("PATH", t.TempDir())
	if err := m.cryptsetup(t.Context(), program{args: []string{"open"}}); csierr.KindOf(err) != csierr.Precondition {
		t.Errorf("without cryptsetup: %v", err)
	}
}

// The end of the context kills the program with its children; nothing waits for them.
func TestContextEndsProgram(t *testing.T) {
	dir := t.TempDir()
	ok(t, unix.Mkfifo(filepath.Join(dir, "started"), 0o600))
	fake(t, "cryptsetup", fmt.Sprintf("sleep 1000 & echo $$ $! >%s/started; wait", dir))
	m, err := New(Config{Prefix: "test"})
	ok(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- m.cryptsetup(ctx, program{args: []string{"luksFormat"}}) }()
	text, err := os.ReadFile(filepath.Join(dir, "started"))
	ok(t, err)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || csierr.IsFinal(err) {
		t.Errorf("%v", err)
	}
	for _, pid := range strings.Fields(string(text)) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err == nil && !strings.Contains(string(stat), ") Z ") {
			t.Errorf("it still runs: %s", stat)
		}
	}
}

// A mapping whose device is gone has none in sysfs any more, and is not the volume's.
func TestBelongs(t *testing.T) {
	h := header{uuid: "82aaaaee-ac98-4e91-95d8-995ba16b15a8"}
	d := device{number: "8:16"}
	m := mapping{Mapping: Mapping{Name: "x-v"}, uuid: "CRYPT-LUKS2-82aaaaeeac984e9195d8995ba16b15a8-x-v", sectors: 8, devices: []string{"8:16"}}
	ok(t, m.belongs(d, h))
	for _, change := range []func(*mapping){
		func(m *mapping) { m.devices = nil },
		func(m *mapping) { m.devices = []string{"8:32"} },
		func(m *mapping) { m.devices = []string{"8:16", "8:32"} },
		func(m *mapping) { m.uuid = "CRYPT-LUKS2-82aaaaeeac984e9195d8995ba16b15a8-y-v" },
	} {
		other := m
		change(&other)
		if err := other.belongs(d, h); csierr.KindOf(err) != csierr.Precondition {
			t.Errorf("%+v: %v", other, err)
		}
	}
}

// The header is what cryptsetup wrote, from either copy.
func TestHeader(t *testing.T) {
	gate.Tools(t, "cryptsetup")
	image := filepath.Join(t.TempDir(), "image")
	ok(t, os.WriteFile(image, nil, 0o600))
	ok(t, os.Truncate(image, 32<<20))
	read := func() (header, error) {
		t.Helper()
		f, err := os.Open(image)
		ok(t, err)
		defer f.Close()
		return readHeader(f)
	}
	cryptsetup := func(stdin string, args ...string) string {
		t.Helper()
		c := exec.Command("cryptsetup", args...)
		c.Stdin = strings.NewReader(stdin)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("cryptsetup %v: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if _, err := read(); !errors.Is(err, errNoHeader) {
		t.Errorf("blank: %v", err)
	}
	format := func(kind string, more ...string) {
		cryptsetup("a", append(append([]string{"luksFormat", "--type", kind, "--batch-mode", "--key-file", "-"}, more...), image)...)
	}
	format("luks1", "--pbkdf-force-iterations", "1000")
	if _, err := read(); !errors.Is(err, errVersion) {
		t.Errorf("LUKS1: %v", err)
	}
	format("luks2", append([]string{"--label", "pvc-1"}, cheap...)...)
	older, err := os.ReadFile(image)
	ok(t, err)
	key := filepath.Join(t.TempDir(), "key")
	ok(t, os.WriteFile(key, []byte("b"), 0o600))
	cryptsetup("a", append(append([]string{"luksAddKey", "--batch-mode", "--key-file", "-", "--key-slot", "5"}, cheap...), image, key)...)
	want, err := read()
	if err != nil || want.label != "pvc-1" || want.uuid != cryptsetup("", "luksUUID", image) || fmt.Sprint(want.slots) != "[0 5]" {
		t.Fatalf("%+v, %v", want, err)
	}
	good, err := os.ReadFile(image)
	ok(t, err)
	// A write that was interrupted between the two.
	for _, torn := range [][]byte{append(bytes.Clone(older[:16384]), good[16384:]...), append(bytes.Clone(good[:16384]), older[16384:]...)} {
		ok(t, os.WriteFile(image, torn, 0o600))
		if got, err := read(); err != nil || fmt.Sprint(got.slots) != "[0 5]" {
			t.Errorf("of two headers: %+v, %v", got, err)
		}
	}
	change := func(places ...int) {
		t.Helper()
		bad := bytes.Clone(good)
		for _, at := range places {
			bad[at] ^= 0x55
		}
		ok(t, os.WriteFile(image, bad, 0o600))
	}
	for _, at := range []int{0, 7, 20, 170, 470, 4096, 4200, 16383} {
		change(at)
		if at == 7 { // the version
			continue
		}
		if got, err := read(); err != nil || got.uuid != want.uuid || got.label != want.label {
			t.Errorf("damaged at %d: %+v, %v", at, got, err)
		}
		change(at, 16384+at)
		if _, err := read(); !errors.Is(err, errDamaged) && (at != 0 || !errors.Is(err, errNoHeader)) {
			t.Errorf("both damaged at %d: %v", at, err)
		}
	}
}
