//go:build !unix

package csitest

import (
	"os/exec"
	"time"
)

func ownGroup(*exec.Cmd)                       {}
func killGroup(cmd *exec.Cmd)                  { _ = cmd.Process.Kill() } // gone already
func awaitGroup(*exec.Cmd, time.Duration) bool { return true }
func terminate(cmd *exec.Cmd)                  { killGroup(cmd) }
