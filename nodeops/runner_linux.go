package nodeops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/exec"
)

// runner starts programs in a process group of their own, so that the end of a
// deadline kills helpers of helpers as well, and a signal to the driver's group
// does not interrupt a mkfs.
type runner struct{ exec.Interface }

func newRunner() exec.Interface { return runner{exec.New()} }

func (runner) Command(name string, args ...string) exec.Cmd {
	return runner{}.CommandContext(context.Background(), name, args...)
}

func (runner) CommandContext(ctx context.Context, name string, args ...string) exec.Cmd {
	c := osexec.CommandContext(ctx, name, args...)
	c.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return unix.Kill(-c.Process.Pid, unix.SIGKILL) }
	return cmd{c}
}

type cmd struct{ *osexec.Cmd }

func (c cmd) SetDir(dir string)       { c.Dir = dir }
func (c cmd) SetStdin(in io.Reader)   { c.Stdin = in }
func (c cmd) SetStdout(out io.Writer) { c.Stdout = out }
func (c cmd) SetStderr(out io.Writer) { c.Stderr = out }
func (c cmd) SetEnv(env []string)     { c.Env = env }
func (c cmd) Stop() {
	if c.Process != nil {
		unix.Kill(-c.Process.Pid, unix.SIGKILL)
	}
}

func (c cmd) Run() error              { return exitError(c.Cmd.Run()) }
func (c cmd) Wait() error             { return exitError(c.Cmd.Wait()) }
func (c cmd) Output() ([]byte, error) { b, err := c.Cmd.Output(); return b, exitError(err) }
func (c cmd) CombinedOutput() ([]byte, error) {
	b, err := c.Cmd.CombinedOutput()
	return b, exitError(err)
}

func exitError(err error) error {
	if ee := (*osexec.ExitError)(nil); errors.As(err, &ee) {
		return &exec.ExitErrorWrapper{ExitError: ee}
	}
	return err
}

// command runs a program to its end and returns its exit status and what it
// printed. A timeout of 0 means none: a mkfs is never killed half-way.
//
// The output goes to a memory file, not a pipe: a mkfs that outlives this
// process, when that is killed, must not die of SIGPIPE half-way.
func (n *Node) command(timeout time.Duration, name string, args ...string) (status int, output string, err error) {
	ctx := context.Background()
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return 0, "", os.NewSyscallError("memfd_create", err)
	}
	out := os.NewFile(uintptr(fd), name)
	defer out.Close()

	c := n.exec.CommandContext(ctx, name, args...)
	c.SetStdout(out)
	c.SetStderr(out)
	start := time.Now()
	err = c.Run()
	text, readErr := io.ReadAll(io.NewSectionReader(out, 0, 64<<10))
	output = strings.TrimSpace(string(text))
	n.log.Debug("ran a program", "command", append([]string{name}, args...),
		"duration", time.Since(start), "error", err, "output", output)

	var exit exec.ExitError
	switch {
	case errors.Is(err, exec.ErrExecutableNotFound):
		return 0, "", fmt.Errorf("%s is not installed (or not on PATH): %w", name, err)
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitStatus(), output, readErr
	case err != nil:
		return 0, output, fmt.Errorf("%s: %w: %s", name, err, output)
	}
	return 0, output, readErr
}
