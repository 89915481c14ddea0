package breaker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csierr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error means that a server does not respond. If errors.As finds no method Pending()
// <-chan struct{} in it, the call was not started.
type Error struct {
	Server string
	Err    error // why; of a breaker that is open, only the text of the last failure
}

func (e *Error) Error() string { return fmt.Sprintf("server %s does not respond: %v", e.Server, e.Err) }

// Unwrap returns [csierr.Uncertain], so that no kind of Err makes the code final, and Err.
func (e *Error) Unwrap() []error { return []error{csierr.Uncertain, e.Err} }

// GRPCStatus returns the code of [csierr.CodeOf]: DEADLINE_EXCEEDED for work that is in flight
// and a probe that timed out, otherwise UNAVAILABLE.
func (e *Error) GRPCStatus() *status.Status { return status.New(csierr.CodeOf(e), e.Error()) }

// NoResponse reports whether an error means that the server did not respond: ETIMEDOUT,
// EHOSTUNREACH, ENETUNREACH, ECONNREFUSED, EHOSTDOWN, a deadline of a connection, an
// [*Error], and any error that [csierr.CodeOf] gives DEADLINE_EXCEEDED, such as that of a mount
// helper that was killed and of an HTTP client's timeout. UNAVAILABLE is not among them, since
// every error that is not classified has it: for a gRPC service, set Group.NoResponse to a
// function that adds it.
func NoResponse(err error) bool {
	var e *Error
	if err == nil {
		return false
	}
	if errors.As(err, &e) || errors.Is(err, os.ErrDeadlineExceeded) || csierr.CodeOf(err) == codes.DeadlineExceeded {
		return true
	}
	for _, errno := range []syscall.Errno{syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ECONNREFUSED, syscall.EHOSTDOWN} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// outcome is what the result of a call says about the server.
type outcome int

const (
	inconclusive outcome = iota
	responded
	failed
)

func (g *Group) outcome(err error) outcome {
	noResponse := g.NoResponse
	if noResponse == nil {
		noResponse = NoResponse
	}
	var full *blocking.LimitError
	var panicked *blocking.PanicError
	switch {
	case err == nil:
		return responded
	case errors.As(err, &full), errors.As(err, &panicked), csierr.CodeOf(err) == codes.Canceled:
		return inconclusive
	case noResponse(err):
		return failed
	}
	return responded
}

// DialTCP returns a [Server.Probe] that connects to host:port and closes the connection.
func DialTCP(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}
