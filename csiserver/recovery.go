package csiserver

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"google.golang.org/grpc"
)

// Recovery turns a panic of a handler into an error, and logs its value and
// stack at error level, stripped of the secrets of the request. The caller
// learns no more than the request ID; under [StatusNormalization] it gets the
// same code as for any error whose outcome is unknown.
//
// A panic on a goroutine that the handler started still ends the process: no
// interceptor can catch it. A nil logger discards.
//
// The recovery of go-grpc-middleware has no place for the request, of which the
// value and the stack of a panic may hold secrets.
func Recovery(logger *slog.Logger, opts ...LayerOption) Interceptor {
	return recovery(orDiscard(logger), newLayerConfig(opts))
}

func recovery(logger *slog.Logger, c layerConfig) Interceptor {
	redactKeys := c.redactKeys
	caught := func(ctx context.Context, method string, req any, value any) error {
		callOf(ctx).countPanic(ctx, method)
		logger.LogAttrs(ctx, slog.LevelError, "rpc panicked", append(callAttrs(ctx, method, req),
			slog.String("panic", strip(req, redactKeys, fmt.Sprint(value))),
			slog.String("stack", strip(req, redactKeys, string(debug.Stack()))))...)
		return fmt.Errorf("%s panicked: see the stack in the plugin's log under request_id %q", shortName(method), RequestID(ctx))
	}
	return Interceptor{
		Unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
			defer func() {
				if v := recover(); v != nil {
					resp, err = nil, caught(ctx, info.FullMethod, req, v)
				}
			}()
			return next(ctx, req)
		},
		Stream: func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
			var first firstMessage
			defer func() {
				if v := recover(); v != nil {
					err = caught(ss.Context(), info.FullMethod, first.get(), v)
				}
			}()
			return next(srv, &stream{ServerStream: ss, ctx: ss.Context(), onRecv: func(m any) error {
				first.set(m)
				return nil
			}})
		},
	}
}
