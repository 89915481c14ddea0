package csiserver

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// ValidationMode sets what happens to a message, or to a set of capabilities, that
// breaks the rules of the specification.
type ValidationMode uint8

const (
	// ValidationEnforce refuses it.
	ValidationEnforce ValidationMode = iota + 1
	// ValidationWarn accepts it and logs the violations at warn level; those of messages
	// are counted by [Metrics] as well.
	ValidationWarn
	// ValidationOff does not validate it.
	ValidationOff
)

// WithValidationOptions sets options of [csispec.Validate], such as [csispec.WithCSISanity].
// A [Server] adds [csispec.WithCapabilities] with those that its services report.
func WithValidationOptions(opts ...csispec.Option) InterceptorOption {
	return interceptorOption(func(c *interceptorConfig) { c.validation = append(c.validation, opts...) })
}

// WithRequestValidation sets what happens to requests that break the rules. The
// default is [ValidationEnforce]. For what Kubernetes sends although the specification
// forbids it, there are options by name, for [WithValidationOptions]:
// [csispec.WithInlineVolumesAllowed] and [csispec.WithLargeSecretsAllowed]. A driver with existing volumes whose IDs are longer
// than 128 bytes needs [ValidationWarn], or they cannot be unpublished and deleted.
func WithRequestValidation(mode ValidationMode) InterceptorOption {
	return interceptorOption(func(c *interceptorConfig) { c.requests = mode })
}

// WithResponseValidation sets what happens to responses that break the rules. The
// default is [ValidationWarn], because the operation is complete by then.
// [ValidationEnforce] is for tests: the call fails with INTERNAL, or with UNAVAILABLE if
// it changed something, which is not undone.
//
// A response with a string that is not valid UTF-8 is refused like that in every
// mode: it cannot be sent, and gRPC would return INTERNAL, from which a CO concludes
// that the call has left nothing behind.
func WithResponseValidation(mode ValidationMode) InterceptorOption {
	return interceptorOption(func(c *interceptorConfig) { c.responses = mode })
}

// Validation checks requests and responses against the rules of [csispec.Validate]. A
// unary request that is refused reaches no interceptor further in; a streaming
// call is refused when its request is received, before the handler gets it. Messages
// sent on a stream of the SnapshotMetadata service are checked by
// [csispec.MetadataStream] as well; of one stream, only the first message that breaks
// rules is logged, while all are counted. A nil logger discards.
func Validation(logger *slog.Logger, opts ...InterceptorOption) Interceptor {
	return validation(orDiscard(logger), newInterceptorConfig(opts))
}

func validation(logger *slog.Logger, c interceptorConfig) Interceptor {
	v := validator{logger: logger, interceptorConfig: c}
	return Interceptor{
		Unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			ctx, c := enter(ctx)
			t := c.take(req, v.redactKeys)
			if err := v.request(ctx, info.FullMethod, t); err != nil {
				return nil, err
			}
			resp, err := next(ctx, req)
			if err != nil {
				return resp, err
			}
			if found := v.validate(resp); found != nil {
				if err := v.response(ctx, info.FullMethod, t, found, true); err != nil {
					return nil, err
				}
			}
			return resp, nil
		},
		Stream: func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			ctx := ss.Context()
			var first firstMessage
			var sent sentMessages
			return next(srv, &stream{ServerStream: ss, ctx: ctx,
				onRecv: func(m any) error {
					if first.set(m, v.redactKeys) {
						return v.request(ctx, info.FullMethod, first.get())
					}
					t := new(taken)
					t.take(m, v.redactKeys)
					return v.request(ctx, info.FullMethod, t)
				},
				onSend: func(m any) error {
					found := sent.validate(&v, first.get().request(), m)
					if found == nil {
						return nil
					}
					log := !sent.logged // a stream may have thousands with the same mistake
					sent.logged = true
					return v.response(ctx, info.FullMethod, first.get(), found, log)
				},
			})
		},
	}
}

type validator struct {
	logger *slog.Logger
	interceptorConfig
}

func (v *validator) request(ctx context.Context, method string, t *taken) error {
	if v.requests == ValidationOff {
		return nil
	}
	found := v.validate(t.message)
	if found == nil {
		return nil
	}
	callOf(ctx).countViolations(ctx, method, "request", found)
	if v.requests == ValidationEnforce {
		return found
	}
	v.warn(ctx, method, t, "request", found)
	return nil
}

// response refuses a response that breaks rules, or logs it and lets it pass.
func (v *validator) response(ctx context.Context, method string, t *taken, found *csispec.Violations, log bool) error {
	unsendable := slices.ContainsFunc(found.All, func(x csispec.Violation) bool { return x.Rule == "utf-8" })
	if v.responses == ValidationOff && !unsendable {
		return nil
	}
	callOf(ctx).countViolations(ctx, method, "response", found)
	if v.responses == ValidationEnforce || unsendable {
		return status.Error(outcomeUnknown(method), found.Error())
	}
	if log {
		v.warn(ctx, method, t, "response", found)
	}
	return nil
}

// validate returns nil if m breaks no rule.
func (v *validator) validate(m any) *csispec.Violations {
	p, ok := m.(proto.Message)
	if !ok {
		return nil
	}
	err := csispec.Validate(p, v.validation...)
	if err == nil {
		return nil
	}
	found, _ := errors.AsType[*csispec.Violations](err)
	return found
}

func (v *validator) warn(ctx context.Context, method string, t *taken, message string, found *csispec.Violations) {
	v.logger.LogAttrs(ctx, slog.LevelWarn, message+" breaks rules of CSI", append(callAttrs(ctx, method, t.request()),
		slog.String("error", t.strip(found.Error())))...)
}

// sentMessages is the state of the messages sent on one stream, which are sent one at a
// time.
type sentMessages struct {
	metadata *csispec.MetadataStream // from the first message on
	logged   bool
}

func (s *sentMessages) validate(v *validator, req, m any) *csispec.Violations {
	found := v.validate(m)
	resp, ok := m.(csispec.MetadataResponse)
	if !ok {
		return found
	}
	if s.metadata == nil {
		req, ok := req.(csispec.MetadataRequest)
		if !ok { // the handler sends before it has received
			return found
		}
		s.metadata = csispec.NewMetadataStream(req)
	}
	err := s.metadata.Next(resp)
	if err == nil {
		return found
	}
	inStream, _ := errors.AsType[*csispec.Violations](err)
	if found == nil {
		return inStream
	}
	return &csispec.Violations{Subject: found.Subject, All: slices.Concat(found.All, inStream.All), Omitted: found.Omitted + inStream.Omitted}
}
