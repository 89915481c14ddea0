//go:build !linux || !(amd64 || arm64)

package crash

import (
	"errors"
	"os/exec"
	"syscall"
)

// A Process is a program that is traced by this package.
type Process struct{}

// Start returns errors.ErrUnsupported on this system.
func Start(cmd *exec.Cmd, _ ...Option) (*Process, error) {
	return nil, &Error{Op: "start", Path: cmd.Path, Err: errors.ErrUnsupported}
}

// Arm does nothing on this system.
func (p *Process) Arm(int) {}

// ArmFailure does nothing on this system.
func (p *Process) ArmFailure(int, syscall.Errno) {}

// Disarm does nothing on this system.
func (p *Process) Disarm() {}

// Calls returns nil on this system.
func (p *Process) Calls() []Call { return nil }

// Killed returns false on this system.
func (p *Process) Killed() bool { return false }

// Failed returns false on this system.
func (p *Process) Failed() bool { return false }

// Pid returns 0 on this system.
func (p *Process) Pid() int { return 0 }

// Done returns nil on this system.
func (p *Process) Done() <-chan struct{} { return nil }

// Kill does nothing on this system.
func (p *Process) Kill() {}

// Wait returns errors.ErrUnsupported on this system.
func (p *Process) Wait() error { return errors.ErrUnsupported }
