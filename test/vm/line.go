//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A line is a serial line of a guest, as a socket.
type line struct {
	conn  net.Conn
	lines *bufio.Reader
	n     int // commands so far

	mu   sync.Mutex
	text []byte // read by keep
}

// newLine returns our end and qemu's.
func newLine() (*line, *os.File, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "line"), os.NewFile(uintptr(fds[1]), "line")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return &line{conn: conn, lines: bufio.NewReader(conn)}, theirs, nil
}

// command runs a command in the shell at the other end, and returns its exit status.
func (l *line) command(ctx context.Context, command string, timeout time.Duration, each func(string)) (int, error) {
	l.n++
	marker := fmt.Sprintf("csikit-vm-%d-status ", l.n)
	defer context.AfterFunc(ctx, func() { l.conn.SetDeadline(time.Unix(1, 0)) })()
	if err := l.conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return 0, err
	}
	// The empty line is for output that does not end with a newline.
	if _, err := fmt.Fprintf(l.conn, "(%s) 2>&1; status=$?; echo; echo '%s'$status\n", command, marker); err != nil {
		return 0, err
	}
	held := false // an empty line that may be ours
	for {
		s, err := l.lines.ReadString('\n')
		switch {
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded):
			return 0, fmt.Errorf("timed out after %v", timeout)
		case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
			return 0, errors.New("the guest exited")
		case err != nil:
			return 0, err
		}
		s = strings.TrimRight(s, "\r\n")
		if status, ok := strings.CutPrefix(s, marker); ok {
			return strconv.Atoi(status)
		}
		if held {
			each("")
		}
		if held = s == ""; !held {
			each(s)
		}
	}
}

// rest reads the remaining output of a command that timed out.
func (l *line) rest(timeout time.Duration, each func(string)) {
	l.conn.SetDeadline(time.Now().Add(timeout))
	for {
		s, err := l.lines.ReadString('\n')
		if err != nil {
			return
		}
		each(strings.TrimRight(s, "\r\n"))
	}
}

// keep reads unsolicited output, and stores the end of it.
func (l *line) keep() {
	const most = 1 << 20
	buf := make([]byte, 4096)
	for {
		n, err := l.lines.Read(buf)
		l.mu.Lock()
		if l.text = append(l.text, buf[:n]...); len(l.text) > most {
			l.text = l.text[len(l.text)-most:]
		}
		l.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (l *line) kept() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.ReplaceAll(string(l.text), "\r", "")
}
