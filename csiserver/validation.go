package csiserver

import (
	"context"

	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Validation refuses requests that break the rules of [csispec.Validate]. A
// unary request that is refused reaches no interceptor further in; a streaming
// call is refused where the request is received, in front of the handler.
func Validation(opts ...csispec.Option) Interceptor {
	check := func(req any) error {
		if m, ok := req.(proto.Message); ok {
			return csispec.Validate(m, opts...)
		}
		return nil
	}
	return Interceptor{
		Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := check(req); err != nil {
				return nil, err
			}
			return next(ctx, req)
		},
		Stream: func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return next(srv, &stream{ServerStream: ss, ctx: ss.Context(), onRecv: check})
		},
	}
}
