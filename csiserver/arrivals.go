package csiserver

import (
	"context"
	"log/slog"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// arrivals logs the calls that fail before an interceptor gets them, such as one with a
// message that is too large.
type arrivals struct{ logger *slog.Logger }

// arrival is the context of a call until an interceptor has it, and further in.
type arrival struct {
	context.Context
	method  string
	entered atomic.Bool
}

type arrivalKey struct{}

func (a *arrival) Value(key any) any {
	if _, ok := key.(arrivalKey); ok {
		return a
	}
	return a.Context.Value(key)
}

// entered notes that an interceptor has the call of ctx.
func entered(ctx context.Context) {
	if a, ok := ctx.Value(arrivalKey{}).(*arrival); ok {
		a.entered.Store(true)
	}
}

func (arrivals) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	return &arrival{Context: ctx, method: info.FullMethodName}
}

func (l arrivals) HandleRPC(ctx context.Context, s stats.RPCStats) {
	end, ok := s.(*stats.End)
	if !ok || end.Error == nil {
		return
	}
	if a, ok := ctx.Value(arrivalKey{}).(*arrival); ok && !a.entered.Load() {
		s := status.Convert(end.Error)
		l.logger.LogAttrs(ctx, slog.LevelWarn, "rpc refused before it was handled",
			slog.String("rpc", shortName(a.method)), slog.String("code", s.Code().String()), slog.String("error", s.Message()))
	}
}

func (arrivals) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (arrivals) HandleConn(context.Context, stats.ConnStats)                       {}

// unimplemented handles the methods that the server does not have, behind the interceptors,
// which log and count them.
func unimplemented(_ any, ss grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(ss)
	return status.Errorf(codes.Unimplemented, "unknown method %s", method)
}
