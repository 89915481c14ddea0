package mountapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/oldkernel"
	"golang.org/x/sys/unix"
)

// The package works on each kernel, with the system calls that it has.
func TestOldKernels(t *testing.T) {
	gate.UserNS(t)
	oldkernel.Run(t, "^Test(Sweep|Bind|New|At|Clone|Attach|Unmount|Resolve|IsShared)", "4.18")
}

func init() { roles = append(roles, gate.WithRole("scratch", holdScratch)) }

var old = Kernel{Without: StatCalls | TreeCalls | ContextCalls}

// holdScratch is a process that is killed while it has a tree of a tmpfs.
func holdScratch() {
	_, err := old.NewTree("tmpfs", "tmpfs", Options{})
	fmt.Println(err)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// A scratch of a process that was killed is swept, and one that is in use is not.
func TestSweepScratches(t *testing.T) {
	s := newSandbox(t)
	before := len(s.table())
	cmd := gate.RoleCommand(t.Context(), "scratch")
	in, err := cmd.StdinPipe()
	s.ok(err)
	defer in.Close()
	out, err := cmd.StdoutPipe()
	s.ok(err)
	s.ok(cmd.Start())
	line := make([]byte, 100)
	if n, _ := out.Read(line); string(line[:n]) != "<nil>\n" {
		t.Fatalf("%s", line)
	}
	own, err := old.NewTree("tmpfs", "tmpfs", Options{})
	s.ok(err)
	s.ok(os.Mkdir(filepath.Join(os.TempDir(), scratchPrefix+"empty"), 0o700)) // killed before it was mounted
	s.ok(os.WriteFile(filepath.Join(os.TempDir(), scratchPrefix+"file"), nil, 0o600))
	s.ok(old.SweepScratches())
	if n := len(s.table()) - before; n != 4 { // each bound to itself, and with a tmpfs
		t.Errorf("%d mounts, want 4: those in use", n)
	}
	s.ok(cmd.Process.Kill())
	_ = cmd.Wait()
	s.ok(Kernel{Without: TreeCalls}.SweepScratches())
	if n := len(s.table()) - before; n != 2 {
		t.Errorf("%d mounts, want 2: those of this process", n)
	}
	s.ok(own.Attach(s.mkdir("target")))
	s.ok(own.Close())
	_, err = Unmount(s.path("target"))
	s.ok(err)
	s.ok(os.Remove(filepath.Join(os.TempDir(), scratchPrefix+"file")))
	s.expectNothingNew()
}

// Before Linux 5.8 a table counts when it was read twice.
func TestReadAgreed(t *testing.T) {
	reads := func(texts ...string) func() ([]byte, error) {
		return func() ([]byte, error) {
			if len(texts) == 0 {
				return nil, io.ErrUnexpectedEOF
			}
			defer func() { texts = texts[1:] }()
			return []byte(texts[0]), nil
		}
	}
	for _, x := range []struct {
		texts  []string
		cursor bool
		want   string
	}{
		{[]string{"a"}, true, "a"}, {[]string{"a", "a"}, false, "a"}, {[]string{"a", "b", "a", "a"}, false, "a"}, {[]string{"a", "b", "b"}, false, "b"},
	} {
		got, err := readAgreed(reads(x.texts...), x.cursor)
		if err != nil || string(got) != x.want {
			t.Errorf("%v: %q, %v", x.texts, got, err)
		}
	}
	if _, err := readAgreed(reads("a"), false); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
	var n byte
	if _, err := readAgreed(func() ([]byte, error) { n++; return bytes.Repeat([]byte{n}, 2), nil }, false); !errors.Is(err, unix.EAGAIN) || n != maxReads+1 {
		t.Errorf("%v after %d reads", err, n)
	}
}
