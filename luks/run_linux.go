package luks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/process"
	"golang.org/x/sys/unix"
)

// program is a program to run. Its arguments are logged: a passphrase is in none of them.
type program struct {
	name  string
	args  []string
	stdin Passphrase
	key   Passphrase // a second one, as the file newKey
	claim *os.File   // inherited, with its lock; may be nil
}

// newKey is the path of program.key in the program. (A container may have no /dev/fd.)
const newKey = "/proc/self/fd/3"

// run runs a program and returns its exit status and output. It is killed when ctx ends, and
// when this process does: every step can be repeated.
//
// Passphrases go through memory files, which need no second thread and are in no directory.
func (m *Mapper) run(ctx context.Context, p program) (status int, output string, err error) {
	ctx, cancel := context.WithCancel(ctx) // so that it can end, see process.Command
	defer cancel()
	c := process.Command(ctx, p.name, p.args...)
	// Without DM_DISABLE_UDEV, libdevmapper waits until udev has created the node: for ever
	// in a container, whose semaphores the host's udev does not have.
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "DM_DISABLE_UDEV=1"}
	stdin, err := memory("stdin", p.stdin)
	if err != nil {
		return 0, "", err
	}
	defer wipe(stdin, len(p.stdin))
	c.Stdin = stdin
	key, err := memory("key", p.key)
	if err != nil {
		return 0, "", err
	}
	defer wipe(key, len(p.key))
	c.ExtraFiles = []*os.File{key}
	if p.claim != nil {
		c.ExtraFiles = append(c.ExtraFiles, p.claim)
	}
	out, err := memory("output", nil)
	if err != nil {
		return 0, "", err
	}
	defer out.Close()
	c.Stdout, c.Stderr = out, out

	start := time.Now()
	err = c.Run()
	raw, readErr := io.ReadAll(io.NewSectionReader(out, 0, 16<<10))
	for _, secret := range []Passphrase{p.stdin, p.key} {
		if len(secret) > 0 {
			raw = bytes.ReplaceAll(raw, secret, []byte(hidden))
		}
	}
	output = strings.TrimSpace(string(raw))
	m.log.Debug("ran a program", "command", append([]string{p.name}, p.args...), "duration", time.Since(start), "error", err, "output", output)

	var exit *exec.ExitError
	switch {
	case err != nil && ctx.Err() != nil:
		return 0, output, fmt.Errorf("%s %s was killed: %w", p.name, p.args[0], ctx.Err())
	case errors.Is(err, exec.ErrNotFound):
		return 0, "", kindf(csierr.Precondition, "%s is not installed, or not on PATH: %w", p.name, err)
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode(), output, readErr
	case err != nil:
		return 0, output, fmt.Errorf("%s %s: %w: %s", p.name, p.args[0], err, output)
	}
	return 0, output, readErr
}

// Exit statuses of cryptsetup(8).
const (
	statusOK         = 0
	statusParameters = 1
	statusPassphrase = 2
	statusDevice     = 4
	statusBusy       = 5
)

// cryptsetup runs an action of cryptsetup that is to succeed.
func (m *Mapper) cryptsetup(ctx context.Context, p program) error {
	p.name = "cryptsetup"
	status, output, err := m.run(ctx, p)
	if err != nil || status == statusOK {
		return err
	}
	kind := csierr.Unknown
	switch status {
	case statusPassphrase:
		kind = csierr.Unauthenticated
		output = "no key of the volume is opened by this passphrase"
	case statusDevice:
		kind = csierr.Precondition
	case statusBusy:
		kind = csierr.Busy
	}
	return kindf(kind, "cryptsetup %s exited with status %d: %s", p.args[0], status, output)
}

// memory returns a file in memory with the content, at its beginning.
func memory(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("luks "+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.WriteAt(content, 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// wipe overwrites the first n bytes and closes the file.
func wipe(f *os.File, n int) {
	_, _ = f.WriteAt(make([]byte, n), 0)
	f.Close()
}
