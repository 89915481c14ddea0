package csitest

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// whileBusy refuses a request while another with the same key is under way, with a code
// that does not say so. The first of a key waits for the second, which is how none
// is missed; it waits in vain where there is one alone, but only once for every key.
func whileBusy[T any, M message[T]](key func(M) string, refusal codes.Code) grpc.UnaryServerInterceptor {
	var mu sync.Mutex
	busy, seen := map[string]chan struct{}{}, map[string]bool{}
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		r, ok := req.(M)
		if !ok || key(r) == "" {
			return handler(ctx, req)
		}
		k := key(r)
		mu.Lock()
		if other := busy[k]; other != nil {
			select {
			case <-other:
			default:
				close(other)
			}
			mu.Unlock()
			return nil, status.Error(refusal, "it is under way")
		}
		met, again := make(chan struct{}), seen[k]
		busy[k], seen[k] = met, true
		mu.Unlock()
		if !again {
			select {
			case <-met:
			case <-time.After(busyTime):
			}
		}
		resp, err := handler(ctx, req)
		mu.Lock()
		defer mu.Unlock()
		delete(busy, k)
		return resp, err
	}
}

// busyTime is how long a call that comes alone is held.
const busyTime = 100 * time.Millisecond
