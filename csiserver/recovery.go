package csiserver

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Recovery turns a panic of a handler into an error, and logs its value and
// stack at error level, stripped of the secrets of the request. The caller
// gets only the request ID; under [StatusNormalization] it gets the
// same code as for any error whose outcome is unknown. An error whose Error method
// panics, as that of a nil pointer in an error may, is handled in the same way.
//
// A panic on a goroutine that the handler started still ends the process: no
// interceptor can recover it. A call whose goroutine ends by runtime.Goexit is logged
// and counted as a panic, but never answered.
func Recovery(logger *slog.Logger, opts ...InterceptorOption) Interceptor {
	return newRecovery(orDiscard(logger), newInterceptorConfig(opts))
}

// newRecovery uses the recovery of go-grpc-middleware, which calls back on the stack
// that panics. What it does not have is here: the request, of which the value and the
// stack may hold secrets, travels in the context; Goexit; errors that panic; and
// panic(nil), which it takes for success under GODEBUG=panicnil=1.
func newRecovery(logger *slog.Logger, c interceptorConfig) Interceptor {
	l := panicLog{logger, c.redactKeys}
	handler := recovery.WithRecoveryHandlerContext(l.recovered)
	unary, streaming := recovery.UnaryServerInterceptor(handler), recovery.StreamServerInterceptor(handler)
	return Interceptor{
		Unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			ctx, c := enterRecovery(ctx, info.FullMethod)
			c.guarded.request = c.take(req, l.keys)
			returned := false
			defer l.detectGoexit(ctx, &returned)
			resp, err := unary(ctx, req, info, func(ctx context.Context, req any) (any, error) {
				resp, err := next(ctx, req)
				c.guarded.ended = true
				return resp, err
			})
			if err == nil && !c.guarded.ended {
				err = l.recovered(ctx, nil)
			}
			if err != nil {
				if _, panicked := unary(ctx, err, info, evaluate); panicked != nil {
					resp, err = nil, panicked
				}
			}
			returned = true
			return resp, err
		},
		Stream: func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			ctx, c := enterRecovery(ss.Context(), info.FullMethod)
			c.guarded.stream = new(firstMessage)
			returned := false
			defer l.detectGoexit(ctx, &returned)
			err := streaming(srv, &stream{ServerStream: ss, ctx: ctx, onRecv: func(m any) error {
				c.guarded.stream.set(m, l.keys)
				return nil
			}}, info, func(srv any, ss grpc.ServerStream) error {
				err := next(srv, ss)
				c.guarded.ended = true
				return err
			})
			if err == nil && !c.guarded.ended {
				err = l.recovered(ctx, nil)
			}
			if err != nil {
				if _, panicked := unary(ctx, err, nil, evaluate); panicked != nil {
					err = panicked
				}
			}
			returned = true
			return err
		},
	}
}

// guarded is the call that a Recovery protects.
type guarded struct {
	method  string
	request *taken        // of a unary call
	stream  *firstMessage // of a streaming call
	ended   bool          // the handler returned
}

func (g *guarded) taken() *taken {
	if g.stream != nil {
		return g.stream.get()
	}
	return g.request
}

// enterRecovery returns a call for Recovery alone: an outer one on the same context
// keeps its own.
func enterRecovery(ctx context.Context, method string) (context.Context, *call) {
	ctx, c := enter(ctx)
	if c.guarded.method != "" {
		c = c.within(ctx)
		ctx = c
	}
	c.guarded.method = method
	return ctx, c
}

type panicLog struct {
	logger *slog.Logger
	keys   []string
}

// recovered runs on the stack that panicked.
func (l *panicLog) recovered(ctx context.Context, value any) error {
	g := &callOf(ctx).guarded
	t := g.taken()
	callOf(ctx).countPanic(ctx, g.method)
	l.logger.LogAttrs(ctx, slog.LevelError, "rpc panicked", append(callAttrs(ctx, g.method, t.request()),
		slog.String("panic", t.strip(panicText(value))),
		slog.String("stack", t.strip(string(debug.Stack()))))...)
	return fmt.Errorf("%s panicked: see the stack in the plugin's log under request_id %q", shortName(g.method), RequestID(ctx))
}

// detectGoexit reports a call that neither returned nor panicked.
func (l *panicLog) detectGoexit(ctx context.Context, returned *bool) {
	if !*returned {
		_ = l.recovered(ctx, nil)
	}
}

// evaluate is a handler that calls the methods of an error that outer interceptors and
// gRPC will call: a panic there would end the process.
func evaluate(_ context.Context, err any) (any, error) {
	_, _ = codeOf(err.(error)), messageOf(err.(error))
	return nil, nil
}

// panicText prints the value of a panic. Of a message only the name: a short secret cannot
// be found in the text, and another goroutine may still write to it.
func panicText(value any) string {
	switch v := value.(type) {
	case nil:
		return "panic(nil) or runtime.Goexit"
	case proto.Message:
		return "a " + string(v.ProtoReflect().Descriptor().FullName())
	case []byte: // as numbers, a secret in it would not be found
		return string(v)
	}
	return fmt.Sprint(value)
}
