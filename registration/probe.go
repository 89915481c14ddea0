package registration

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// standbyKey marks the calls of another Registrar, which are not kubelet's.
const standbyKey = "csikit-standby"

// errStale means that no process serves a socket.
var errStale = errors.New("no process serves the socket")

// probeSocket calls GetInfo on the registration socket at path. The error is nil if
// a process answers, with whatever message; errStale if it is certain that none does:
// the connection is refused, or there is no answer within timeout, which is far longer
// than kubelet waits for one. A connection proves nothing, because the
// kernel accepts connections for a killed process for as long as one of its
// threads hangs in a system call. Any other error is inconclusive.
func probeSocket(ctx context.Context, path string, timeout time.Duration) (pluginInfo, error) {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := dialRetry(bounded, path)
	if err != nil {
		if op := (*net.OpError)(nil); errors.As(err, &op) {
			err = op.Err // without the path, which leads through /proc/self/fd
		}
		return pluginInfo{}, classifyProbe(ctx, err)
	}
	defer conn.Close()
	conns := make(chan net.Conn, 1)
	conns <- conn
	client, err := grpc.NewClient("passthrough:///registration",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{})),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-conns:
				return c, nil
			default:
				return nil, net.ErrClosed // no reconnect
			}
		}))
	if err != nil {
		return pluginInfo{}, err
	}
	defer client.Close()
	var info pluginInfo
	err = client.Invoke(metadata.AppendToOutgoingContext(bounded, standbyKey, "1"), methodGetInfo, empty{}, &info)
	return info, classifyProbe(ctx, err)
}

// dialRetry connects to path, and retries while the backlog is full: the server may
// be under load and not stale.
func dialRetry(ctx context.Context, path string) (net.Conn, error) {
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if !errors.Is(err, syscall.EAGAIN) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// classifyProbe turns the error of a call within ctx into that of probeSocket.
func classifyProbe(ctx context.Context, err error) error {
	const windowsRefused = syscall.Errno(10061) // WSAECONNREFUSED, for which package syscall has no name
	switch code := status.Code(err); {
	case err == nil, ctx.Err() != nil:
		return err
	case errors.Is(err, fs.ErrNotExist):
		return errChanged
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, windowsRefused), // not listening
		errors.Is(err, syscall.EAGAIN),           // the backlog stays full
		errors.Is(err, context.DeadlineExceeded), // connect timed out
		code == codes.DeadlineExceeded:           // no response
		return errStale
	case code == codes.Unknown, code == codes.Unavailable: // the connection was closed, or is not gRPC
		return err
	default: // a response, though an error
		return nil
	}
}
