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

// servedError says that a running process serves a socket.
type servedError struct{ by string }

func (e *servedError) Error() string {
	return fmt.Sprintf("already served by %s: stop that process, or choose another path", e.by)
}

// removeStaleSocket removes the socket file at path if no process serves it. It fails
// for any other file.
func removeStaleSocket(path string, timeout time.Duration) error {
	// A process that does not use the lock may replace the file while its server is
	// probed.
	for range 3 {
		found, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if found.Mode().Type() != fs.ModeSocket {
			return fmt.Errorf("the path exists and is not a socket (%v): move that file, or choose another path", found.Mode())
		}
		servedBy, err := probeSocket(path, timeout)
		if err != nil {
			return fmt.Errorf("a socket exists and cannot be probed: %w", err)
		}
		if servedBy != "" {
			return &servedError{servedBy}
		}
		if now, err := os.Lstat(path); err != nil || !os.SameFile(found, now) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return errors.New("the socket keeps changing: another process recreates it repeatedly")
}

// probeSocket describes what serves the socket at path. It returns an empty string if
// the socket is stale, and an error if that cannot be determined.
func probeSocket(path string, timeout time.Duration) (string, error) {
	err := awaitByte(path, timeout)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		// Either a process accepted the connection and closed it, or the listener was
		// closed with the connection in its backlog. Only in the latter case is the
		// next connection refused. EOF and reset do not distinguish them: closing with
		// bytes unread resets, and the kernel reports a reset once, perhaps to the write.
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
		return "a process that closes the connection: no CSI plugin, or one that is stopping", nil
	case errors.Is(err, syscall.EPROTOTYPE):
		return "a process that is no CSI plugin (its socket is not of type stream)", nil
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, windowsRefused), // no listener
		errors.Is(err, fs.ErrNotExist),
		errors.Is(err, syscall.EAGAIN),         // no process accepts, and the backlog is full
		errors.Is(err, os.ErrDeadlineExceeded): // no byte arrived
		return "", nil
	default:
		return "", err
	}
}

// http2Preface is what a client of HTTP/2 sends first: the connection preface
// and an empty SETTINGS frame. A server of HTTP/2 responds with its own settings,
// one of HTTP/1 with an error.
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// awaitByte connects to path and returns nil once a byte has arrived. timeout
// bounds the connect and the wait each, because a connect that succeeds after waiting
// for room in the backlog proves that a process accepts.
func awaitByte(path string, timeout time.Duration) error {
	conn, err := dialWithRetry(path, timeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	// If this fails, because the peer has closed the connection, so does Read.
	_, _ = io.WriteString(conn, http2Preface)
	_, err = conn.Read(make([]byte, 1))
	return err
}

// dialWithRetry connects to path. A full backlog may be that of a server under load.
func dialWithRetry(path string, timeout time.Duration) (net.Conn, error) {
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("unix", path)
		if !errors.Is(err, syscall.EAGAIN) || time.Now().After(deadline) {
			return conn, err
		}
	}
}

// pluginAt describes the plugin that serves path, by its GetPluginInfo if it has one.
func pluginAt(path string, timeout time.Duration) string {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	client, err := dialAddr(&net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return fmt.Sprintf("a process whose name cannot be queried (%v)", err)
	}
	defer client.Close()
	info, err := csi.NewIdentityClient(client).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return fmt.Sprintf("a process that is no CSI plugin, or does not return its name (GetPluginInfo: %v)", err)
	}
	return fmt.Sprintf("plugin %q, version %q", info.GetName(), info.GetVendorVersion())
}
