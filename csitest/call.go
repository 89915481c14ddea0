package csitest

import (
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A Call is one RPC as it went over the wire. It does not change once it is in a
// report.
type Call struct {
	Rule     string // the rule that made the call
	Cleanup  bool   // made during cleanup
	Method   string // NodePublishVolume
	Endpoint string
	Volume   string // the volume's ID, or the requested name
	Begin    time.Time
	Took     time.Duration
	Request  proto.Message
	Response proto.Message   // nil after an error and for streams
	Messages []proto.Message // of a stream
	Status   *status.Status
	Invalid  []csispec.Violation // of the response or the messages; none if the request was illegal itself
}

// Code is the status code of the response.
func (c *Call) Code() codes.Code { return c.Status.Code() }

// End is the time of the response.
func (c *Call) End() time.Time { return c.Begin.Add(c.Took) }

// A recorder keeps every call of a run.
type recorder struct {
	mu    sync.Mutex
	calls []*Call
}

func (r *recorder) add(c *Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, c)
}

func (r *recorder) all() []*Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*Call(nil), r.calls...)
}

func (r *recorder) any(is func(*Call) bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.calls, is)
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.calls)
}

// A conn is the connection of one ruleRun, for which every call is recorded.
type conn struct {
	to       *grpc.ClientConn
	endpoint string
	c        *ruleRun
	cleanup  bool
}

type callKey struct{}

// withCall lets the caller learn which call was recorded.
func withCall(ctx context.Context) (context.Context, **Call) {
	p := new(*Call)
	return context.WithValue(ctx, callKey{}, p), p
}

func (n *conn) begin(ctx context.Context, method string, req any) *Call {
	m, _ := req.(proto.Message)
	call := &Call{
		Rule: n.c.rule.ID, Cleanup: n.cleanup, Method: path.Base(method), Endpoint: n.endpoint,
		Begin: time.Now(), Volume: volumeOf(m),
	}
	if m != nil {
		call.Request = proto.Clone(m)
	}
	if p, ok := ctx.Value(callKey{}).(**Call); ok {
		*p = call
	}
	return call
}

// end records the call, and what it may have made in the storage.
func (n *conn) end(call *Call, err error) {
	call.Took = time.Since(call.Begin)
	call.Status = status.Convert(err)
	if call.Volume == "" && call.Response != nil {
		call.Volume = volumeOf(call.Response)
	}
	if call.Code() == codes.Unavailable || call.Code() == codes.DeadlineExceeded {
		n.c.lost.Store(true)
	}
	n.c.ledger.note(call)
	n.c.run.record.add(call)
}

// Invoke implements grpc.ClientConnInterface.
func (n *conn) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	req = n.c.withSecrets(req)
	call := n.begin(ctx, method, req)
	err := n.to.Invoke(ctx, method, req, resp, opts...)
	if m, ok := resp.(proto.Message); ok && err == nil {
		call.Response = proto.Clone(m)
		if call.Invalid = n.c.run.validate(m); len(call.Invalid) > 0 && !n.c.run.legal(call.Request) {
			call.Invalid = nil
		}
	}
	n.end(call, err)
	return err
}

// NewStream implements grpc.ClientConnInterface. The call is recorded when the
// stream has ended; CSI only has streams from the server.
func (n *conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := n.to.NewStream(ctx, desc, method, opts...)
	if err != nil {
		n.end(n.begin(ctx, method, nil), err)
		return nil, err
	}
	return &stream{ClientStream: s, n: n, method: method, ctx: ctx}, nil
}

type stream struct {
	grpc.ClientStream
	n      *conn
	method string
	ctx    context.Context
	call   *Call
	order  *csispec.MetadataStream
}

func (s *stream) SendMsg(m any) error {
	m = s.n.c.withSecrets(m)
	s.call = s.n.begin(s.ctx, s.method, m)
	if req, ok := m.(csispec.MetadataRequest); ok {
		s.order = csispec.NewMetadataStream(req)
	}
	return s.ClientStream.SendMsg(m)
}

func (s *stream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil && !s.n.c.run.legal(s.call.Request) {
		s.call.Invalid = nil
	}
	switch {
	case errors.Is(err, io.EOF):
		s.n.end(s.call, nil)
	case err != nil:
		s.n.end(s.call, err)
	default:
		if msg, ok := m.(proto.Message); ok {
			s.call.Messages = append(s.call.Messages, proto.Clone(msg))
			s.call.Invalid = append(s.call.Invalid, s.n.c.run.validate(msg)...)
		}
		if resp, ok := m.(csispec.MetadataResponse); ok && s.order != nil {
			s.call.Invalid = append(s.call.Invalid, violations(s.order.Next(resp))...)
		}
	}
	return err
}

func violations(err error) []csispec.Violation {
	var v *csispec.Violations
	if errors.As(err, &v) {
		return v.All
	}
	return nil
}

// volumeOf finds what a message is about: an ID, or the name of what is to be made.
func volumeOf(m proto.Message) string {
	if m == nil {
		return ""
	}
	r := m.ProtoReflect()
	for _, field := range []protoreflect.Name{"volume_id", "source_volume_id", "name", "snapshot_id", "group_snapshot_id"} {
		if f := r.Descriptor().Fields().ByName(field); f != nil && f.Kind() == protoreflect.StringKind {
			if v := r.Get(f).String(); v != "" {
				return v
			}
		}
	}
	return ""
}

// requestJSON is the request in the form that csicheck call takes, secrets masked.
func requestJSON(m proto.Message) string {
	const most = 2 << 10
	s := csispec.Redact(m).String()
	if len(s) > most {
		s = s[:most] + "…"
	}
	return s
}

// responseText is what came back, on one line.
func (c *Call) responseText() string {
	switch {
	case c.Code() != codes.OK:
		return c.Code().String() + " " + strings.TrimSpace(quoteLong(c.Status.Message()))
	case c.Response != nil:
		return "OK " + requestJSON(c.Response)
	}
	var b strings.Builder
	b.WriteString("OK")
	for _, m := range c.Messages {
		b.WriteString(" " + requestJSON(m))
	}
	return b.String()
}

func quoteLong(s string) string {
	if len(s) > 500 {
		s = s[:500] + "…"
	}
	return `"` + s + `"`
}
