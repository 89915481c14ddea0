package csiserver

import (
	"errors"
	"net"
	"time"

	"google.golang.org/grpc"
)

// closeListener closes lis unless it is closed already.
func closeListener(lis net.Listener) error {
	if err := lis.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// shutdown closes lis, drains gs, aborts the calls that still run after the drain timeout,
// and returns before end with their names. Clients that have connected and sent nothing
// delay nothing.
// served is what gs.Serve returns.
func (s *Server) shutdown(gs *grpc.Server, lis *handshakes, served <-chan error, end time.Time) (aborted []string, err error) {
	drain := time.NewTimer(s.drainTimeout)
	defer drain.Stop()

	// gRPC would close lis as well, but drop the error, and hold a mutex meanwhile
	// that a hard stop needs.
	err = closeListener(lis)
	lis.stop()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		gs.GracefulStop()
		<-served
	}()
	select {
	case <-drained:
		return nil, err
	case <-drain.C:
	}

	aborted = s.log.inFlight()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		gs.Stop()
	}()
	unwind := time.NewTimer(time.Until(end))
	defer unwind.Stop()
	for _, c := range []<-chan struct{}{stopped, s.log.calls.whenIdle()} {
		select {
		case <-c:
		case <-unwind.C:
			return aborted, err
		}
	}
	return aborted, err
}
