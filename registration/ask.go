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

// standbyKey marks the questions of a standby, which are not kubelet's.
const standbyKey = "csikit-standby"

// errDead is the answer of a socket that nobody serves.
var errDead = errors.New("nobody serves it")

// ask asks the registration socket at path who serves it. The error is nil if
// somebody answers, whatever that is; errDead if it is proven that nobody does:
// connecting is refused, or there is no answer within timeout, which is far longer
// than kubelet would wait for one. Connecting alone proves nothing, because the
// kernel accepts connections for a killed process for as long as one of its
// threads hangs in a system call. Any other error decides nothing.
func ask(ctx context.Context, path string, timeout time.Duration) (pluginInfo, error) {
	asking, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := dialPatiently(asking, path)
	if err != nil {
		if op := (*net.OpError)(nil); errors.As(err, &op) {
			err = op.Err // the path means nothing to people
		}
		return pluginInfo{}, verdict(ctx, err)
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
				return nil, net.ErrClosed // one connection is one question
			}
		}))
	if err != nil {
		return pluginInfo{}, err
	}
	defer client.Close()
	var info pluginInfo
	err = client.Invoke(metadata.AppendToOutgoingContext(asking, standbyKey, "1"), methodGetInfo, empty{}, &info)
	return info, verdict(ctx, err)
}

// dialPatiently connects to path. A server under load has a full backlog, which is
// not the same as being dead.
func dialPatiently(ctx context.Context, path string) (net.Conn, error) {
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

// verdict turns the outcome of a question, asked within ctx, into that of ask.
func verdict(ctx context.Context, err error) error {
	const windowsRefused = syscall.Errno(10061) // WSAECONNREFUSED, for which package syscall has no name
	switch code := status.Code(err); {
	case err == nil, ctx.Err() != nil:
		return err
	case errors.Is(err, fs.ErrNotExist):
		return errChanged
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, windowsRefused), // nobody listens
		errors.Is(err, syscall.EAGAIN),           // nobody makes room in a full backlog
		errors.Is(err, context.DeadlineExceeded), // nobody lets us in
		code == codes.DeadlineExceeded:           // nobody says anything
		return errDead
	case code == codes.Unknown, code == codes.Unavailable: // no answer of a server: it hung up, or is no gRPC
		return err
	default: // an answer, if not the right one
		return nil
	}
}
