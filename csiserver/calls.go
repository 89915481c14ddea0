package csiserver

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// calls knows which calls are running, so that a stop can name those it cut.
type calls struct {
	mu      sync.Mutex
	running map[*call]struct{}
	idle    chan struct{} // closed when the last call ends; nil if nobody waits
}

type call struct {
	method, requestID string
	start             time.Time
}

func (c *calls) begin(ctx context.Context, method string) (end func()) {
	x := &call{method: shortName(method), requestID: RequestID(ctx), start: time.Now()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil {
		c.running = make(map[*call]struct{})
	}
	c.running[x] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.running, x)
		if len(c.running) == 0 && c.idle != nil {
			close(c.idle)
			c.idle = nil
		}
	}
}

func (c *calls) interceptor() Interceptor {
	return Interceptor{
		Unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			defer c.begin(ctx, info.FullMethod)()
			return next(ctx, req)
		},
		Stream: func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			defer c.begin(ss.Context(), info.FullMethod)()
			return next(srv, ss)
		},
	}
}

// whenIdle returns a channel that is closed once no call is running.
func (c *calls) whenIdle() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.running) == 0 {
		idle := make(chan struct{})
		close(idle)
		return idle
	}
	if c.idle == nil {
		c.idle = make(chan struct{})
	}
	return c.idle
}

// list names the running calls, oldest first.
func (c *calls) list() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*call, 0, len(c.running))
	for x := range c.running {
		all = append(all, x)
	}
	slices.SortFunc(all, func(a, b *call) int {
		return cmp.Or(a.start.Compare(b.start), strings.Compare(a.requestID, b.requestID))
	})
	names := make([]string, len(all))
	for i, x := range all {
		names[i] = fmt.Sprintf("%s (request_id %s, for %v)", x.method, x.requestID, time.Since(x.start).Round(time.Millisecond))
	}
	return names
}
