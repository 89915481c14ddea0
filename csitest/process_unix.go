//go:build unix

package csitest

import (
	"errors"
	"os/exec"
	"syscall"
	"time"
)

// ownGroup makes a group of the process, so that Ctrl-C at the terminal leaves the
// driver up for cleaning up, and kill reaches what a shell has started.
func ownGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
}

func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // gone already
func terminate(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }

// awaitGroup waits until no process of the group is left, but no longer than that.
func awaitGroup(cmd *exec.Cmd, timeout time.Duration) bool {
	for begin := time.Now(); !errors.Is(syscall.Kill(-cmd.Process.Pid, 0), syscall.ESRCH); time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > timeout {
			return false
		}
	}
	return true
}
