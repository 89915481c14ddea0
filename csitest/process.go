package csitest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// A process is a driver that was started here.
type process struct {
	command func() *exec.Cmd
	cmd     *exec.Cmd
	log     buffer
	exited  chan struct{} // closed when the process is no more
	err     error         // valid then
}

func newProcess(command func() *exec.Cmd) *process { return &process{command: command} }

func (p *process) start() error {
	p.cmd, p.exited = p.command(), make(chan struct{})
	p.cmd.Stdout = tee(p.cmd.Stdout, &p.log)
	p.cmd.Stderr = tee(p.cmd.Stderr, &p.log)
	ownGroup(p.cmd)
	if err := p.cmd.Start(); err != nil {
		p.err = err
		close(p.exited)
		return fmt.Errorf("csitest: start the driver: %w", err)
	}
	go func(cmd *exec.Cmd, exited chan struct{}) {
		if p.err = cmd.Wait(); p.err == nil {
			p.err = errors.New("exit status 0")
		}
		close(exited)
	}(p.cmd, p.exited)
	return nil
}

func tee(w io.Writer, log io.Writer) io.Writer {
	if w == nil {
		return log
	}
	return io.MultiWriter(w, log)
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
}

// stop lets the process end by itself first, and tells how that went.
func (p *process) stop() string {
	select {
	case <-p.exited:
		return p.err.Error()
	default:
	}
	begin := time.Now()
	terminate(p.cmd)
	select {
	case <-p.exited:
		return fmt.Sprintf("%v, %.1f s after SIGTERM", p.err, time.Since(begin).Seconds())
	case <-time.After(10 * time.Second):
	}
	p.kill()
	return "killed: it did not end within 10 s of SIGTERM"
}

// A buffer holds what the driver has printed.
type buffer struct {
	mu   sync.Mutex
	text []byte
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = append(b.text, p...)
	return len(p), nil
}

func (b *buffer) bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.text)
}

func (b *buffer) tail(n int) []byte {
	text := b.bytes()
	return text[max(0, len(text)-n):]
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
