package csiserver

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"sync/atomic"

	"google.golang.org/grpc"
)

// RequestID returns the ID that [RequestIDs] assigned to the call of ctx, or "".
func RequestID(ctx context.Context) string { return callOf(ctx).requestID() }

// RequestIDs assigns an ID to each call, unique across restarts of the plugin, which
// correlates its log lines. It does not depend on what the client sends. RequestIDs
// has to be the outermost interceptor.
func RequestIDs() Interceptor {
	var random [4]byte
	rand.Read(random[:]) // never fails
	prefix := hex.EncodeToString(random[:]) + "-"
	var last atomic.Uint64
	with := func(ctx context.Context) context.Context {
		ctx, c := enter(ctx)
		if c.id != 0 { // of a server further out
			c = &call{Context: ctx, meters: c.meters}
			ctx = c
		}
		c.idPrefix, c.id = prefix, last.Add(1)
		return ctx
	}
	return Interceptor{
		Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			return next(with(ctx), req)
		},
		Stream: func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return next(srv, &stream{ServerStream: ss, ctx: with(ss.Context())})
		},
	}
}
