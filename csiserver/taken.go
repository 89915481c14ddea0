package csiserver

import (
	"slices"
	"sync/atomic"

	"github.com/csikit/csikit/csispec"
	"google.golang.org/protobuf/proto"
)

// taken is a request, with its secrets from before the handler got it: a handler may
// remove them from its request, or leave a goroutine behind that still writes to it, which
// ends the process if a map is read meanwhile.
type taken struct {
	message any
	keys    []string
	secrets csispec.Secrets
}

func (t *taken) take(m any, keys []string) {
	t.message, t.keys = m, keys
	if p, ok := m.(proto.Message); ok {
		t.secrets.Take(p, keys...)
	}
}

// request returns the message, which is nil before the first one of a stream.
func (t *taken) request() any {
	if t == nil {
		return nil
	}
	return t.message
}

// strip removes the secrets of the request from text.
func (t *taken) strip(text string) string {
	if t == nil {
		return text
	}
	return t.secrets.RedactText(text)
}

// take returns the request of a unary call. Interceptors share it if they mask the same.
func (c *call) take(req any, keys []string) *taken {
	t := &c.taken
	if t.message != nil {
		if t.message == req && slices.Equal(t.keys, keys) {
			return t
		}
		t = new(taken)
	}
	t.take(req, keys)
	return t
}

// firstMessage holds the request of a streaming call. It is written by the goroutine
// that receives and read by the one that handles the result.
type firstMessage struct{ t atomic.Pointer[taken] }

// set reports whether m is the first message.
func (f *firstMessage) set(m any, keys []string) bool {
	if f.t.Load() != nil {
		return false
	}
	t := new(taken)
	t.take(m, keys)
	return f.t.CompareAndSwap(nil, t)
}

func (f *firstMessage) get() *taken { return f.t.Load() }
