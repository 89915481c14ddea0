package csiserver

import (
	"context"

	"google.golang.org/grpc"
)

// chain makes one interceptor of several, the first of which is the outermost.
// Each interceptor of this package calls the next one once, and before it returns, so
// that one object can carry the state of the call for all of them. gRPC's own chain
// allocates a closure for each interceptor and call: 6 allocations for those of a
// Server instead of 2, and a fifth more time (BenchmarkChain).
func chain(interceptors []grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		c := &chainedCall{call: call{Context: ctx}, rest: interceptors, info: info, handler: handler}
		c.next = c.step
		return c.step(&c.call, req)
	}
}

// chainedCall is one call in a chain.
type chainedCall struct {
	call
	rest    []grpc.UnaryServerInterceptor // not called yet
	info    *grpc.UnaryServerInfo
	handler grpc.UnaryHandler
	next    grpc.UnaryHandler // step, bound once
}

func (c *chainedCall) step(ctx context.Context, req any) (any, error) {
	if len(c.rest) == 0 {
		return c.handler(ctx, req)
	}
	i := c.rest[0]
	c.rest = c.rest[1:]
	return i(ctx, req, c.info, c.next)
}
