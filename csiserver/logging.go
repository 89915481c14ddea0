package csiserver

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Logging writes one line when a call ends, and at debug level one with the
// request when it begins, so that a call that hangs is seen. A call that changes
// something is logged at info level, one that only asks at debug level, a failed
// one at warn or error level.
//
// Requests pass through [csispec.Redact] with redactKeys, and the text of
// errors through [csispec.Redacted.Strip]. A nil logger discards.
func Logging(logger *slog.Logger, redactKeys ...string) Interceptor {
	l := callLog{logger: orDiscard(logger), keys: redactKeys}
	return Interceptor{
		Unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			start := time.Now()
			l.begin(ctx, info.FullMethod, req)
			resp, err := next(ctx, req)
			l.end(ctx, info.FullMethod, req, start, err)
			return resp, err
		},
		Stream: func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			ctx, start := ss.Context(), time.Now()
			var first firstMessage
			err := next(srv, &stream{ServerStream: ss, ctx: ctx, onRecv: func(m any) error {
				if first.set(m) {
					l.begin(ctx, info.FullMethod, m)
				}
				return nil
			}})
			l.end(ctx, info.FullMethod, first.get(), start, err)
			return err
		},
	}
}

type callLog struct {
	logger *slog.Logger
	keys   []string
}

func (l callLog) begin(ctx context.Context, method string, req any) {
	if !l.logger.Enabled(ctx, slog.LevelDebug) {
		return
	}
	attrs := callAttrs(ctx, method, req)
	if m, ok := req.(proto.Message); ok {
		attrs = append(attrs, slog.Any("request", csispec.Redact(m, l.keys...)))
	}
	l.logger.LogAttrs(ctx, slog.LevelDebug, "rpc started", attrs...)
}

func (l callLog) end(ctx context.Context, method string, req any, start time.Time, err error) {
	code := codeOf(err)
	level := slog.LevelDebug
	switch code {
	case codes.OK:
		if mutating(method) {
			level = slog.LevelInfo
		}
	case codes.Internal, codes.Unknown, codes.Unavailable, codes.DataLoss:
		level = slog.LevelError
	default:
		level = slog.LevelWarn
	}
	if !l.logger.Enabled(ctx, level) {
		return
	}
	attrs := append(callAttrs(ctx, method, req),
		slog.String("code", code.String()),
		slog.Duration("duration", time.Since(start)))
	if err != nil {
		attrs = append(attrs, slog.String("error", strip(req, l.keys, messageOf(err))))
	}
	l.logger.LogAttrs(ctx, level, "rpc finished", attrs...)
}

// callAttrs names a call and what it is about.
func callAttrs(ctx context.Context, method string, req any) []slog.Attr {
	attrs := make([]slog.Attr, 0, 8)
	attrs = append(attrs, slog.String("rpc", shortName(method)))
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, value))
		}
	}
	add("request_id", RequestID(ctx))
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

// strip removes from text what the request says in confidence.
func strip(req any, keys []string, text string) string {
	if m, ok := req.(proto.Message); ok {
		return csispec.Redact(m, keys...).Strip(text)
	}
	return text
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

// codeOf is the code that a caller would see.
func codeOf(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	if s, _ := statusOf(err); s != nil && s.Code() != codes.OK {
		return s.Code()
	}
	return status.FromContextError(err).Code()
}
