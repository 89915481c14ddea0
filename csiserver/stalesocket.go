package csiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// servedError says that somebody is alive behind a socket.
type servedError struct{ who string }

func (e *servedError) Error() string {
	return fmt.Sprintf("already served by %s: stop that process, or choose another path", e.who)
}

// removeStaleSocket makes room for a socket at path, if nothing of value is there.
func removeStaleSocket(path string, timeout time.Duration) error {
	// The file may be exchanged while its owner is asked, by a process that
	// knows nothing of the lock.
	for range 3 {
		found, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if found.Mode().Type() != fs.ModeSocket {
			return fmt.Errorf("a file that is no socket (%v) is in the way: move it elsewhere, or choose another path", found.Mode())
		}
		who, err := probeSocket(path, timeout)
		if err != nil {
			return fmt.Errorf("a socket is in the way and cannot be asked who serves it: %w", err)
		}
		if who != "" {
			return &servedError{who}
		}
		if now, err := os.Lstat(path); err != nil || !os.SameFile(found, now) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return errors.New("the socket in the way changes all the time: another process keeps making it")
}

// probeSocket tells who serves the socket at path. It returns an empty string if
// nobody does, and an error if that cannot be told.
func probeSocket(path string, timeout time.Duration) (string, error) {
	err := awaitByte(path, timeout)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		// Either somebody accepted the connection and hung up, or the listener went
		// away with the connection in its backlog. Only then is the next one
		// refused. EOF and reset do not tell: closing with bytes unread resets, and
		// the kernel reports a reset once, perhaps to the write.
		var c net.Conn
		if c, err = net.Dial("unix", path); err == nil {
			c.Close()
			err = io.EOF
		}
	}
	const windowsRefused = syscall.Errno(10061) // WSAECONNREFUSED, for which package syscall has no name
	switch {
	case err == nil:
		return pluginAt(path, timeout), nil
	case errors.Is(err, io.EOF):
		return "something that hangs up: no CSI plugin, or one that is stopping", nil
	case errors.Is(err, syscall.EPROTOTYPE):
		return "something that is no CSI plugin (its socket is not of type stream)", nil
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, windowsRefused), // nobody listens
		errors.Is(err, fs.ErrNotExist),
		errors.Is(err, syscall.EAGAIN),         // nobody makes room in a full backlog
		errors.Is(err, os.ErrDeadlineExceeded): // nobody says anything
		return "", nil
	default:
		return "", err
	}
}

// http2Preface is what a client of HTTP/2 sends first: the connection preface
// and an empty SETTINGS frame. A server of HTTP/2 answers with its own settings,
// one of HTTP/1 with an error.
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// awaitByte connects to path and returns nil once a byte has come back. timeout
// bounds the connect and the wait each, because a connect that had to wait for
// room in the backlog met somebody who accepts.
func awaitByte(path string, timeout time.Duration) error {
	conn, err := dialWithRetry(path, timeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	// If this fails, because the peer has hung up, so does Read.
	_, _ = io.WriteString(conn, http2Preface)
	_, err = conn.Read(make([]byte, 1))
	return err
}

// dialWithRetry connects to path. A server under load has a full backlog, which
// is not the same as being dead.
func dialWithRetry(path string, timeout time.Duration) (net.Conn, error) {
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("unix", path)
		if !errors.Is(err, syscall.EAGAIN) || time.Now().After(deadline) {
			return conn, err
		}
	}
}

// pluginAt names the plugin that serves path, as far as it does so itself.
func pluginAt(path string, timeout time.Duration) string {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	client, err := dialAddr(&net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return fmt.Sprintf("something that cannot be asked for its name (%v)", err)
	}
	defer client.Close()
	info, err := csi.NewIdentityClient(client).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return fmt.Sprintf("something that is no CSI plugin, or does not say which (GetPluginInfo: %v)", err)
	}
	return fmt.Sprintf("plugin %q, version %q", info.GetName(), info.GetVendorVersion())
}
