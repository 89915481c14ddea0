package csiserver

import (
	"context"

	"google.golang.org/grpc"
)

// chain makes one interceptor of layers, the first of which is the outermost.
// Each layer of this package calls the next one once, and before it returns, so
// that one object can find the way in for all of them; gRPC's own chain has to
// allocate for each layer and call.
func chain(layers []grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		w := &chainedCall{call: call{Context: ctx}, layers: layers, info: info, handler: handler}
		w.next = w.step
		return w.step(&w.call, req)
	}
}

// chainedCall is one call on its way through layers.
type chainedCall struct {
	call
	layers  []grpc.UnaryServerInterceptor // still to be passed
	info    *grpc.UnaryServerInfo
	handler grpc.UnaryHandler
	next    grpc.UnaryHandler // step, bound once
}

func (w *chainedCall) step(ctx context.Context, req any) (any, error) {
	if len(w.layers) == 0 {
		return w.handler(ctx, req)
	}
	layer := w.layers[0]
	w.layers = w.layers[1:]
	return layer(ctx, req, w.info, w.next)
}
