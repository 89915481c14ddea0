//go:build unix

package csitest

import (
	"os/exec"
	"syscall"
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
