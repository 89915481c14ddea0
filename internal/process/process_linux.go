// Package process runs programs that are killed with all their children.
package process

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cmd is a program in a process group of its own, so that the end of its context also kills
// its child processes, and a signal to the driver's group does not interrupt it.
type Cmd struct {
	*exec.Cmd
	bounded bool // it may be killed
	killed  bool // written before Wait returns
}

// Command returns the command to run a program. If ctx can end, the program is killed when it
// does, or when this process ends, and is not interrupted otherwise.
func Command(ctx context.Context, name string, args ...string) *Cmd {
	c := &Cmd{Cmd: exec.CommandContext(ctx, name, args...), bounded: ctx.Done() != nil}
	c.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	c.Cancel = func() error {
		c.killed = true
		return unix.Kill(-c.Process.Pid, unix.SIGKILL)
	}
	return c
}

// Stop kills the program.
func (c *Cmd) Stop() {
	if c.Process != nil {
		unix.Kill(-c.Process.Pid, unix.SIGKILL)
	}
}

// Run has a program that may be killed also killed when this process ends: a mount helper
// that survives would mount on top of what the next process has mounted by then.
func (c *Cmd) Run() error {
	if c.bounded {
		runtime.LockOSThread() // prctl(2): the parent is the thread
		defer runtime.UnlockOSThread()
		c.SysProcAttr.Pdeathsig = unix.SIGKILL
	}
	return c.Ended(c.Cmd.Run())
}

// Wait waits for the program after Start.
func (c *Cmd) Wait() error { return c.Ended(c.Cmd.Wait()) }

// Output runs the program and returns its standard output.
func (c *Cmd) Output() ([]byte, error) { b, err := c.Cmd.Output(); return b, c.Ended(err) }

// CombinedOutput runs the program and returns its output.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	b, err := c.Cmd.CombinedOutput()
	return b, c.Ended(err)
}

// Ended waits until a program that was killed or failed has ended with all its children:
// they must not mount anything after an error was returned.
func (c *Cmd) Ended(err error) error {
	if c.killed || err != nil && c.ProcessState != nil {
		reapGroup(c.Process.Pid)
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

// groupRuns reports whether the process group has a member that is not a zombie. The first
// thread of a process is one while others end, of which one may be in mount(2).
func groupRuns(pgid int) bool {
	if errors.Is(unix.Kill(-pgid, 0), unix.ESRCH) {
		return false
	}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, _ := os.ReadFile(path)
		// pid (comm) state ppid pgrp ..., where comm may contain any character, and as the 20th
		// field the number of threads; proc(5)
		_, rest, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')')+1:]), " ")
		if f := strings.Fields(rest); len(f) > 17 && f[2] == strconv.Itoa(pgid) && (f[0] != "Z" && f[0] != "X" || f[17] > "1") {
			return true
		}
	}
	return false
}
