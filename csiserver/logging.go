package csiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// defaultSlow is a quarter of kubelet's timeout of two minutes.
const defaultSlow = 30 * time.Second

// WithSlowCallsAfter sets how long a call may run before [Logging] warns of it;
// default 30 seconds, 0 never warns.
func WithSlowCallsAfter(d time.Duration) InterceptorOption {
	return interceptorOption(func(c *interceptorConfig) { c.slow = d })
}

// WithLogLevel sets the level at which [Logging] reports calls that succeed, by
// their full method, as in /csi.v1.Node/NodePublishVolume. The default is info for
// those that change something and debug for read-only ones: probes and requests for
// capabilities arrive many times a minute.
func WithLogLevel(of func(fullMethod string) slog.Level) InterceptorOption {
	return interceptorOption(func(c *interceptorConfig) {
		if c.level = of; of == nil {
			c.level = defaultLevel
		}
	})
}

func defaultLevel(fullMethod string) slog.Level {
	if mutating(fullMethod) {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// Logging writes one line when a call ends, at the level of [WithLogLevel] or, if
// it failed, at warn or error level. To show calls that hang, it writes
// another one with the request when a call begins, at debug level or below, and
// one at warn level when a call is slow: see [WithSlowCallsAfter].
//
// Requests pass through [csispec.Redact], and the text of errors through
// [csispec.Secrets.RedactText] with the secrets that the request had before the handler. A
// handler must not change the IDs, names and paths of its request, which are read
// concurrently. A nil logger discards.
func Logging(logger *slog.Logger, opts ...InterceptorOption) Interceptor {
	return newCallLog(logger, newInterceptorConfig(opts)).interceptor()
}

// callLog logs calls and lists those in flight.
type callLog struct {
	logger *slog.Logger
	keys   []string
	level  func(fullMethod string) slog.Level
	calls  calls
}

func newCallLog(logger *slog.Logger, c interceptorConfig) *callLog {
	l := &callLog{logger: orDiscard(logger), keys: c.redactKeys, level: c.level}
	l.calls.slow, l.calls.report = c.slow, l.slow
	return l
}

func (l *callLog) interceptor() Interceptor {
	return Interceptor{
		Unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			ctx, c := l.enter(ctx, info.FullMethod)
			c.request = req
			t := c.take(req, l.keys)
			l.calls.add(c)
			defer l.calls.remove(c)
			l.begin(ctx, c.method, req)
			resp, err := next(ctx, req)
			l.end(ctx, c, t, err)
			return resp, err
		},
		Stream: func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			ctx, c := l.enter(ss.Context(), info.FullMethod)
			l.calls.add(c)
			defer l.calls.remove(c)
			var first firstMessage
			err := next(srv, &stream{ServerStream: ss, ctx: ctx, onRecv: func(m any) error {
				if first.set(m, l.keys) {
					l.calls.received(c, m)
					l.begin(ctx, c.method, m)
				}
				return nil
			}})
			l.end(ctx, c, first.get(), err)
			return err
		},
	}
}

// enter returns a call that can be added to the list of those in flight.
func (l *callLog) enter(ctx context.Context, method string) (context.Context, *call) {
	entered(ctx)
	ctx, c := enter(ctx)
	if c.method != "" { // on the list of a Logging further out
		c = c.within(ctx)
		ctx = c
	}
	c.method = method
	return ctx, c
}

// maxAborted is how many calls an error names.
const maxAborted = 32

// inFlight names the calls in flight, oldest first.
func (l *callLog) inFlight() []string {
	running := l.calls.running()
	var names []string
	for i, c := range running {
		if i == maxAborted {
			return append(names, fmt.Sprintf("and %d more", len(running)-i))
		}
		names = append(names, fmt.Sprintf("%s (request_id %s, for %v)", shortName(c.method), c.requestID(), time.Since(c.start).Round(time.Millisecond)))
	}
	return names
}

func (l *callLog) begin(ctx context.Context, method string, req any) {
	level := min(slog.LevelDebug, l.level(method))
	if !l.logger.Enabled(ctx, level) {
		return
	}
	attrs := callAttrs(ctx, method, req)
	if m, ok := req.(proto.Message); ok {
		attrs = append(attrs, slog.Any("request", csispec.Redact(m, l.keys...)))
	}
	l.logger.LogAttrs(ctx, level, "rpc started", attrs...)
}

func (l *callLog) slow(u inFlightCall) {
	attrs := append(callAttrs(u.call, u.method, u.request), slog.Duration("duration", time.Since(u.start)))
	if t, ok := u.Deadline(); ok {
		attrs = append(attrs, slog.Duration("caller_waits_for", time.Until(t)))
	}
	l.logger.LogAttrs(u.call, slog.LevelWarn, "rpc is still running", attrs...)
}

func (l *callLog) end(ctx context.Context, c *call, t *taken, err error) {
	code := codeOf(err)
	level := slog.LevelWarn
	switch code {
	case codes.OK:
		level = l.level(c.method)
	case codes.Internal, codes.Unknown, codes.Unavailable, codes.DataLoss:
		level = slog.LevelError
	}
	if !l.logger.Enabled(ctx, level) {
		return
	}
	attrs := append(callAttrs(ctx, c.method, t.request()),
		slog.String("code", code.String()),
		slog.Duration("duration", time.Since(c.start)))
	if err != nil {
		attrs = append(attrs, slog.String("error", t.strip(messageOf(err))))
	}
	l.logger.LogAttrs(ctx, level, "rpc finished", attrs...)
}

// callAttrs identifies a call and the objects of its request.
func callAttrs(ctx context.Context, method string, req any) []slog.Attr {
	attrs := make([]slog.Attr, 0, 8)
	attrs = append(attrs, slog.String("rpc", shortName(method)))
	if id := RequestID(ctx); id != "" {
		attrs = append(attrs, slog.String("request_id", id))
	}
	return requestAttrs(attrs, req)
}

// requestAttrs appends the IDs, names and paths of a request.
func requestAttrs(attrs []slog.Attr, req any) []slog.Attr {
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, value))
		}
	}
	if r, ok := req.(interface{ GetVolumeId() string }); ok {
		add("volume_id", r.GetVolumeId())
	}
	if r, ok := req.(interface{ GetName() string }); ok {
		add("name", r.GetName())
	}
	if r, ok := req.(interface{ GetNodeId() string }); ok {
		add("node_id", r.GetNodeId())
	}
	if r, ok := req.(interface{ GetSourceVolumeId() string }); ok {
		add("source_volume_id", r.GetSourceVolumeId())
	}
	if r, ok := req.(interface{ GetSnapshotId() string }); ok {
		add("snapshot_id", r.GetSnapshotId())
	}
	if r, ok := req.(interface{ GetGroupSnapshotId() string }); ok {
		add("group_snapshot_id", r.GetGroupSnapshotId())
	}
	if r, ok := req.(interface{ GetStagingTargetPath() string }); ok {
		add("staging_target_path", r.GetStagingTargetPath())
	}
	if r, ok := req.(interface{ GetTargetPath() string }); ok {
		add("target_path", r.GetTargetPath())
	}
	if r, ok := req.(interface{ GetVolumePath() string }); ok {
		add("volume_path", r.GetVolumePath())
	}
	return attrs
}

func orDiscard(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}

// statusOf finds the status that err carries, and the error that carries it.
func statusOf(err error) (*status.Status, error) {
	var carrier interface {
		error
		GRPCStatus() *status.Status
	}
	if errors.As(err, &carrier) {
		return carrier.GRPCStatus(), carrier
	}
	return nil, nil
}

// codeOf is the code that a caller would get.
func codeOf(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	if s, _ := statusOf(err); s != nil && s.Code() != codes.OK {
		return s.Code()
	}
	return status.FromContextError(err).Code()
}
