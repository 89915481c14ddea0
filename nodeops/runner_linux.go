package nodeops

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	osexec "os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"
	"k8s.io/utils/exec"
)

// runner starts each program in a process group of its own, so that a timeout also kills
// its child processes, and a signal to the driver's group does not interrupt a mkfs.
type runner struct{ exec.Interface }

func newRunner() exec.Interface { return runner{exec.New()} }

func (runner) Command(name string, args ...string) exec.Cmd {
	return runner{}.CommandContext(context.Background(), name, args...)
}

func (runner) CommandContext(ctx context.Context, name string, args ...string) exec.Cmd {
	c := &cmd{Cmd: osexec.CommandContext(ctx, name, args...)}
	_, c.bounded = ctx.Deadline()
	c.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	c.Cancel = func() error {
		c.killed = true
		return unix.Kill(-c.Process.Pid, unix.SIGKILL)
	}
	return c
}

type cmd struct {
	*osexec.Cmd
	bounded bool // it may be killed
	killed  bool // written before Wait returns
}

func (c *cmd) SetDir(dir string)       { c.Dir = dir }
func (c *cmd) SetStdin(in io.Reader)   { c.Stdin = in }
func (c *cmd) SetStdout(out io.Writer) { c.Stdout = out }
func (c *cmd) SetStderr(out io.Writer) { c.Stderr = out }
func (c *cmd) SetEnv(env []string)     { c.Env = env }
func (c *cmd) Stop() {
	if c.Process != nil {
		unix.Kill(-c.Process.Pid, unix.SIGKILL)
	}
}

// Run has a program with a deadline killed when this process ends: a mount helper that
// survives would mount on top of what the next process has mounted by then.
func (c *cmd) Run() error {
	if c.bounded {
		runtime.LockOSThread() // prctl(2): the parent is the thread
		defer runtime.UnlockOSThread()
		c.SysProcAttr.Pdeathsig = unix.SIGKILL
	}
	return c.ended(c.Cmd.Run())
}

func (c *cmd) Wait() error             { return c.ended(c.Cmd.Wait()) }
func (c *cmd) Output() ([]byte, error) { b, err := c.Cmd.Output(); return b, c.ended(err) }
func (c *cmd) CombinedOutput() ([]byte, error) {
	b, err := c.Cmd.CombinedOutput()
	return b, c.ended(err)
}

// ended waits until a program that was killed or failed has ended with all its children:
// they must not mount anything after an error was returned.
func (c *cmd) ended(err error) error {
	if c.killed || err != nil && c.ProcessState != nil {
		reapGroup(c.Process.Pid)
	}
	if ee := (*osexec.ExitError)(nil); errors.As(err, &ee) {
		return &exec.ExitErrorWrapper{ExitError: ee}
	}
	return err
}

// reapGroup kills what is left of a process group whose leader has ended, and returns when
// it has no processes: a child of a mount helper that still waits for a server would mount
// when that responds, on a path that may belong to another volume by then. A process in
// uninterruptible sleep blocks this call, and so is listed by InFlight.
func reapGroup(pgid int) {
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
		unix.Kill(-pgid, unix.SIGKILL)
		// As PID 1 of a container, this process has to reap orphans.
		for {
			if pid, err := unix.Wait4(-pgid, nil, unix.WNOHANG, nil); pid <= 0 && !errors.Is(err, unix.EINTR) {
				break
			}
		}
		if !groupRuns(pgid) {
			return
		}
		time.Sleep(wait)
	}
}

// groupRuns reports whether the process group has a member that is not a zombie.
func groupRuns(pgid int) bool {
	if errors.Is(unix.Kill(-pgid, 0), unix.ESRCH) {
		return false
	}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, _ := os.ReadFile(path)
		// pid (comm) state ppid pgrp ..., where comm may contain any character; proc(5)
		_, rest, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')')+1:]), " ")
		if f := strings.Fields(rest); len(f) > 2 && f[2] == strconv.Itoa(pgid) && f[0] != "Z" && f[0] != "X" {
			return true
		}
	}
	return false
}

// program is a program to run.
type program struct {
	name      string
	args      []string
	timeout   time.Duration // 0: none
	input     *os.File      // standard input; nil: empty
	sensitive []string      // mount flags in args that must appear neither in logs nor in errors
}

// command runs a program and returns its exit status and output. A timeout of 0 means
// none: a mkfs is never interrupted, also not by the end of ctx.
func (n *Node) command(ctx context.Context, timeout time.Duration, name string, args ...string) (status int, output string, err error) {
	return n.execute(ctx, program{name: name, args: args, timeout: timeout})
}

// execute is command with further parameters.
//
// The output goes to a memory file, not a pipe: a mkfs that outlives this process must not
// be interrupted by SIGPIPE.
func (n *Node) execute(ctx context.Context, p program) (status int, output string, err error) {
	ctx, done := n.telemetry.step(context.WithoutCancel(ctx), path.Base(p.name))
	defer func() {
		trace.SpanFromContext(ctx).SetAttributes(attribute.Int("process.exit.code", status))
		done(err)
	}()
	if p.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.timeout)
		defer cancel()
	}
	fd, err := unix.MemfdCreate(path.Base(p.name), unix.MFD_CLOEXEC)
	if err != nil {
		return 0, "", os.NewSyscallError("memfd_create", err)
	}
	out := os.NewFile(uintptr(fd), p.name)
	defer out.Close()

	hide := hider(p.sensitive)
	shown := make([]string, 0, 1+len(p.args))
	for _, a := range append([]string{p.name}, p.args...) {
		shown = append(shown, hide.Replace(a))
	}
	c := n.exec.CommandContext(ctx, p.name, p.args...)
	if p.input != nil {
		c.SetStdin(p.input)
	}
	c.SetStdout(out)
	c.SetStderr(out)
	start := time.Now()
	err = c.Run()
	text, readErr := io.ReadAll(io.NewSectionReader(out, 0, 64<<10))
	output = hide.Replace(strings.TrimSpace(string(text)))
	n.log.Debug("ran a program", "command", shown,
		"duration", time.Since(start), "error", err, "output", output)

	var exit exec.ExitError
	switch {
	case ctx.Err() != nil && err != nil:
		return 0, output, fmt.Errorf("%s was killed after the timeout of %v: %w: %s", p.name, p.timeout, ctx.Err(), output)
	case errors.Is(err, exec.ErrExecutableNotFound):
		return 0, "", fmt.Errorf("%s is not installed, or not on PATH: %w", p.name, err)
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitStatus(), output, readErr
	case err != nil:
		return 0, output, fmt.Errorf("%s: %w: %s", p.name, err, output)
	}
	return 0, output, readErr
}

// hider returns a replacer that hides the given mount flags, and their values anywhere else.
func hider(sensitive []string) *strings.Replacer {
	hidden := make(map[string]string)
	for _, option := range sensitive {
		key, value, ok := strings.Cut(option, "=")
		if !ok {
			value = option
		} else {
			hidden[option] = key + "=(hidden)"
		}
		if value != "" {
			hidden[value] = "(hidden)"
		}
	}
	// The longest first: if one is a prefix of another, the rest of the longer one would be
	// shown otherwise.
	var pairs []string
	for _, text := range slices.SortedFunc(maps.Keys(hidden), func(a, b string) int { return len(b) - len(a) }) {
		pairs = append(pairs, text, hidden[text])
	}
	return strings.NewReplacer(pairs...)
}
