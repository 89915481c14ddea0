package volumelock

import (
	"context"
	"path"
	"reflect"
	"time"

	"google.golang.org/grpc"
)

// Option changes what [Interceptor] does.
type Option interface{ apply(*config) }

type config struct {
	policy    Policy
	wait      time.Duration
	requestID func(context.Context) string
}

type option func(*config)

func (o option) apply(c *config) { o(c) }

// WithPolicy replaces [DefaultPolicy]. nil changes nothing.
func WithPolicy(p Policy) Option {
	return option(func(c *config) {
		if p != nil {
			c.policy = p
		}
	})
}

// WithWait lets a call wait up to limit for busy keys before it is
// refused. Without it, and with 0 or less, calls are refused immediately. The wait
// also ends with the call's context, and parked keys are not waited for; see
// [Table.AcquireWait]. Stay well below the CO's deadline, 2 minutes for kubelet: the wait
// counts against it.
func WithWait(limit time.Duration) Option {
	return option(func(c *config) { c.wait = limit })
}

// WithRequestID sets the function that returns the id of a request from its context, by
// which a [BusyError] identifies the holder of a key. nil changes nothing.
func WithRequestID(from func(context.Context) string) Option {
	return option(func(c *config) {
		if from != nil {
			c.requestID = from
		}
	})
}

// Interceptor returns interceptors that hold the keys of each call while its handler
// runs, also when the handler panics. A call whose keys are held by another call fails
// with a [*BusyError] and does not reach the handler. Pass the result to
// csiserver.WithInterceptors, or its fields to grpc.ChainUnaryInterceptor and
// grpc.ChainStreamInterceptor.
//
// When the handler returns an error that has, or wraps, a method
// Pending() <-chan struct{}, the keys are parked until that channel closes (see
// [Held.Park]), and with several of them, as errors.Join may bring, until all have
// closed; a nil channel means that nothing is pending.
//
// Of a streaming call, the keys of the first message received are held until the
// handler returns. The streaming RPCs of CSI are those of SnapshotMetadata, which need
// no keys under [DefaultPolicy]; Stream serves a [Policy] that, for instance, keeps a
// snapshot from being deleted while it is read.
//
// Add this interceptor last (closest to the handler): after validation, so that an invalid
// request is not refused as busy, and inside of interceptors that turn errors into plain
// statuses, which would hide Pending. Several servers may share one table; for a nil t the
// interceptor has a table of its own.
func Interceptor(t *Table, opts ...Option) struct {
	Unary  grpc.UnaryServerInterceptor
	Stream grpc.StreamServerInterceptor
} {
	if t == nil {
		t = new(Table)
	}
	c := newConfig(opts)
	return struct {
		Unary  grpc.UnaryServerInterceptor
		Stream grpc.StreamServerInterceptor
	}{c.unary(t), c.stream(t)}
}

func (c *config) unary(t *Table) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		held, err := c.acquire(ctx, t, info.FullMethod, req)
		if err != nil {
			return nil, err
		}
		defer held.Release()
		resp, err := handler(ctx, req)
		held.parkFor(err)
		return resp, err
	}
}

func (c *config) stream(t *Table) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		s := &stream{ServerStream: ss, acquire: func(m any) (Held, error) {
			return c.acquire(ss.Context(), t, info.FullMethod, m)
		}}
		defer func() { s.held.Release() }()
		err := handler(srv, s)
		s.held.parkFor(err)
		return err
	}
}

// stream takes keys for the first message.
type stream struct {
	grpc.ServerStream
	acquire func(m any) (Held, error) // nil after the first message
	held    Held
}

func (s *stream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err != nil || s.acquire == nil {
		return err
	}
	s.held, err = s.acquire(m)
	s.acquire = nil
	return err
}

func newConfig(opts []Option) *config {
	c := &config{policy: DefaultPolicy, requestID: func(context.Context) string { return "" }}
	for _, o := range opts {
		o.apply(c)
	}
	return c
}

func (c *config) acquire(ctx context.Context, t *Table, fullMethod string, req any) (Held, error) {
	reqs := c.policy(fullMethod, req)
	if len(reqs) == 0 {
		return Held{}, nil
	}
	op := Op{RPC: path.Base(fullMethod), RequestID: c.requestID(ctx)}
	if c.wait <= 0 {
		return t.Acquire(op, reqs...)
	}
	return t.AcquireWait(ctx, c.wait, op, reqs...)
}

// parkFor parks the keys if err reports pending work.
func (h Held) parkFor(err error) {
	if pending := pendingIn(err); len(pending) > 0 {
		h.Park(pending...)
	}
}

// pendingIn returns the channels of all errors in the tree of err that are pending.
// errors.As would stop at the first one.
func pendingIn(err error) (list []<-chan struct{}) {
	if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.IsNil() {
		return nil // a typed nil, on which a method may panic
	}
	if p, ok := err.(interface{ Pending() <-chan struct{} }); ok {
		list = append(list, p.Pending())
	}
	switch err := err.(type) { //nolint:errorlint // it walks the tree of errors
	case interface{ Unwrap() error }:
		list = append(list, pendingIn(err.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, e := range err.Unwrap() {
			list = append(list, pendingIn(e)...)
		}
	}
	return list
}
