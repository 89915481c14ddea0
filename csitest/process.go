package csitest

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"time"
)

const stopTimeout = 10 * time.Second // for a driver that is asked to end

// A process is a driver that was started here.
type process struct {
	command func() *exec.Cmd
	cmd     *exec.Cmd
	log     *os.File      // what it prints, through all its starts
	exited  chan struct{} // closed when the process is no more
	err     error         // valid then
}

func newProcess(command func() *exec.Cmd) *process { return &process{command: command} }

func (p *process) start() error {
	// A file, not a pipe: what the driver has started and what outlives it, such as the
	// server of a FUSE file system, may hold it open and write more.
	if p.log == nil {
		log, err := os.CreateTemp("", "csitest")
		if err != nil {
			return fmt.Errorf("csitest: for the driver's output: %w", err)
		}
		_ = os.Remove(log.Name()) // not on Windows while it is open: see stop
		p.log = log
	}
	p.cmd, p.exited = p.command(), make(chan struct{})
	if p.cmd.Stdout == nil {
		p.cmd.Stdout = p.log
	}
	if p.cmd.Stderr == nil {
		p.cmd.Stderr = p.log
	}
	ownGroup(p.cmd)
	started := make(chan error)
	go func(cmd *exec.Cmd, exited chan struct{}) {
		// A driver with Pdeathsig ends with the thread that started it, and rules end threads.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if p.err = cmd.Start(); p.err != nil {
			close(exited)
			started <- fmt.Errorf("csitest: start the driver: %w", p.err)
			return
		}
		started <- nil
		if p.err = cmd.Wait(); p.err == nil {
			p.err = errors.New("exit status 0")
		}
		close(exited)
	}(p.cmd, p.exited)
	return <-started
}

// kill ends the process and those that it has started with SIGKILL.
func (p *process) kill() {
	select {
	case <-p.exited: // its ID may be another's by now
		return
	default:
	}
	killGroup(p.cmd)
	<-p.exited
	awaitGroup(p.cmd, 2*time.Second) // killed, but perhaps not reaped
}

// stop terminates the process gracefully first, and reports how that went.
func (p *process) stop() string {
	defer func() {
		_ = p.log.Close()
		_ = os.Remove(p.log.Name())
	}()
	select {
	case <-p.exited:
		return p.err.Error()
	default:
	}
	begin := time.Now()
	terminate(p.cmd)
	select {
	case <-p.exited:
		// A shell ends before the driver that it runs does.
		if awaitGroup(p.cmd, stopTimeout-time.Since(begin)) {
			return fmt.Sprintf("%v, %.1f s after SIGTERM", p.err, time.Since(begin).Seconds())
		}
		killGroup(p.cmd)
	case <-time.After(stopTimeout):
		p.kill()
	}
	return fmt.Sprintf("killed: it did not exit within %v of SIGTERM", stopTimeout)
}

// logs reports whether all that the driver prints is in its log.
func (p *process) logs() bool { return p.cmd.Stdout == p.log && p.cmd.Stderr == p.log }

// output is what the driver has printed.
func (p *process) output() []byte {
	text, err := io.ReadAll(io.NewSectionReader(p.log, 0, math.MaxInt64))
	if err != nil {
		panic(fmt.Sprintf("the driver's output: %v", err))
	}
	return text
}

// logTail is the end of what the driver has printed.
func (p *process) logTail() []byte {
	text := p.output()
	return text[max(0, len(text)-2<<10):]
}

func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// readFrom reads the file from the offset on, or all of it if it has become shorter.
func readFrom(path string, offset int64) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil || int64(len(text)) < offset {
		return text, err
	}
	return text[offset:], nil
}
