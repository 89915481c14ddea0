//go:build unix

package csitest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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

// awaitGroup waits until no process of the group runs, but no longer than that. A zombie
// does not run: what a shell has started is reaped by process 1, in its own time.
func awaitGroup(cmd *exec.Cmd, timeout time.Duration) bool {
	for begin := time.Now(); !errors.Is(syscall.Kill(-cmd.Process.Pid, 0), syscall.ESRCH) && groupRuns(cmd.Process.Pid); time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > timeout {
			return false
		}
	}
	return true
}

// groupRuns reports whether a process of the group is not a zombie. Without a /proc of
// Linux it assumes so.
func groupRuns(group int) bool {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is good
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		i := strings.LastIndexByte(string(stat), ')') // the name before may contain anything
		if err != nil || i < 0 {
			continue
		}
		// proc_pid_stat(5): state, parent, process group, and as the 20th field the number of threads.
		// The first thread is a zombie while others end, which may have sockets and locks open.
		if f := strings.Fields(string(stat[i+1:])); len(f) > 17 && f[2] == strconv.Itoa(group) && (f[0] != "Z" && f[0] != "X" || f[17] > "1") {
			return true
		}
	}
	return len(stats) == 0
}
