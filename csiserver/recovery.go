package csiserver

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Recovery turns a panic of a handler into an error, and logs its value and
// stack at error level, stripped of the secrets of the request. The caller
// learns no more than the request ID; under [StatusNormalization] it gets the
// same code as for any error whose outcome is unknown. An error that panics when it
// is asked for its text, as a nil pointer in an error may, is caught here as well.
//
// A panic on a goroutine that the handler started still ends the process: no
// interceptor can catch it. A call whose goroutine ends by runtime.Goexit is logged
// and counted as a panic, but never answered.
//
// The recovery of go-grpc-middleware has no place for the request, of which the
// value and the stack of a panic may hold secrets.
func Recovery(logger *slog.Logger, opts ...InterceptorOption) Interceptor {
	return recovery(orDiscard(logger), newInterceptorConfig(opts))
}

func recovery(logger *slog.Logger, c interceptorConfig) Interceptor {
	redactKeys := c.redactKeys
	caught := func(ctx context.Context, method string, req any, value any) error {
		callOf(ctx).countPanic(ctx, method)
		logger.LogAttrs(ctx, slog.LevelError, "rpc panicked", append(callAttrs(ctx, method, req),
			slog.String("panic", strip(req, redactKeys, panicText(value, redactKeys))),
			slog.String("stack", strip(req, redactKeys, string(debug.Stack()))))...)
		return fmt.Errorf("%s panicked: see the stack in the plugin's log under request_id %q", shortName(method), RequestID(ctx))
	}
	return Interceptor{
		Unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
			returned := false
			defer func() {
				if !returned { // recover may give nil, for Goexit and for panic(nil) of old programs
					resp, err = nil, caught(ctx, info.FullMethod, req, recover())
				}
			}()
			resp, err = next(ctx, req)
			checkErrorText(err)
			returned = true
			return resp, err
		},
		Stream: func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
			var first firstMessage
			returned := false
			defer func() {
				if !returned {
					err = caught(ss.Context(), info.FullMethod, first.get(), recover())
				}
			}()
			err = next(srv, &stream{ServerStream: ss, ctx: ss.Context(), onRecv: func(m any) error {
				first.set(m)
				return nil
			}})
			checkErrorText(err)
			returned = true
			return err
		},
	}
}

// checkErrorText does with err what the layers further out and gRPC will do: there, a
// panic would end the process.
func checkErrorText(err error) {
	if err != nil {
		_, _ = codeOf(err), messageOf(err)
	}
}

// panicText prints the value of a panic. Of a message, not even a short secret may
// be seen, which nobody could find in the text.
func panicText(value any, redactKeys []string) string {
	switch v := value.(type) {
	case nil:
		return "panic(nil) or runtime.Goexit"
	case proto.Message:
		return csispec.Redact(v, redactKeys...).String()
	}
	return fmt.Sprint(value)
}
