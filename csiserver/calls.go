package csiserver

import (
	"context"
	"strconv"
	"sync"
	"time"
)

// A call is the state that the interceptors keep of one RPC, and the context of the
// interceptors further in and of the handler: so one allocation serves them all.
type call struct {
	context.Context

	// Set by RequestIDs.
	idPrefix string
	id       uint64 // 0: none

	meters  *meters // set by Metrics; nil: nothing is counted
	guarded guarded // set by Recovery
	taken   taken   // of a unary call, by the first interceptor that needs it

	// Set by Logging.
	method string
	start  time.Time

	// Guarded by calls.mu.
	request    any // nil before the first message of a streaming call
	prev, next *call
}

type callKey struct{}

// Value returns the call itself, and otherwise the values of the outer context.
func (c *call) Value(key any) any {
	if _, ok := key.(callKey); ok {
		return c
	}
	return c.Context.Value(key)
}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// enter returns the call of ctx, and a context that carries it. The outermost
// interceptor in use creates the call.
func enter(ctx context.Context) (context.Context, *call) {
	if c := callOf(ctx); c != nil {
		return ctx, c
	}
	c := &call{Context: ctx}
	return c, c
}

// within returns another call for an interceptor that finds its fields in c in use, by
// the same interceptor further out. It has the same ID and meters.
func (c *call) within(ctx context.Context) *call {
	return &call{Context: ctx, idPrefix: c.idPrefix, id: c.id, meters: c.meters}
}

func (c *call) requestID() string {
	if c == nil || c.id == 0 {
		return ""
	}
	return c.idPrefix + strconv.FormatUint(c.id, 10)
}

// calls lists the calls in flight, so that a stop can name those it aborts, the debug
// page can show them, and a slow one is reported before it ends.
type calls struct {
	slow     time.Duration // after which a call is reported; 0: never
	report   func(inFlightCall)
	mu       sync.Mutex
	oldest   *call // the list is in the order of starts
	youngest *call
	idle     chan struct{} // closed when the last call ends; nil without a waiter

	// One timer serves all calls: they become slow in the order of the list. It
	// is not stopped when calls end in time, so that a busy server rarely sets it,
	// and an idle one never.
	timer  *time.Timer
	armed  bool
	unslow *call // the oldest that has not been reported
}

// inFlightCall is a call with its request at the time the list was read.
type inFlightCall struct {
	*call
	request any
}

// received sets the request of a streaming call, unless it has one.
func (l *calls) received(c *call, request any) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.request != nil {
		return false
	}
	c.request = request
	return true
}

func (l *calls) add(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.start = time.Now()
	if c.prev = l.youngest; c.prev != nil {
		c.prev.next = c
	} else {
		l.oldest = c
	}
	l.youngest = c
	if l.unslow == nil {
		l.unslow = c
		l.arm(l.slow)
	}
}

func (l *calls) remove(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unslow == c {
		l.unslow = c.next
	}
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		l.oldest = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		l.youngest = c.prev
	}
	c.prev, c.next = nil, nil
	if l.oldest == nil && l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// arm sets the timer if it is not set. The caller holds mu.
func (l *calls) arm(after time.Duration) {
	if l.slow <= 0 || l.armed {
		return
	}
	l.armed = true
	if l.timer == nil {
		l.timer = time.AfterFunc(after, l.reportSlow)
	} else {
		l.timer.Reset(after)
	}
}

func (l *calls) reportSlow() {
	for _, u := range l.takeSlow() {
		l.report(u)
	}
}

// takeSlow returns the calls that have become slow since the last time, and sets
// the timer for the next one.
func (l *calls) takeSlow() (slow []inFlightCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = false
	for ; l.unslow != nil; l.unslow = l.unslow.next {
		left := l.slow - time.Since(l.unslow.start)
		if left > 0 {
			l.arm(left)
			break
		}
		slow = append(slow, inFlightCall{l.unslow, l.unslow.request})
	}
	return slow
}

// whenIdle returns a channel that is closed once no call is running.
func (l *calls) whenIdle() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.oldest == nil {
		idle := make(chan struct{})
		close(idle)
		return idle
	}
	if l.idle == nil {
		l.idle = make(chan struct{})
	}
	return l.idle
}

// running returns the calls in flight, oldest first.
func (l *calls) running() (all []inFlightCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := l.oldest; c != nil; c = c.next {
		all = append(all, inFlightCall{c, c.request})
	}
	return all
}
