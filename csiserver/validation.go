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

// WithValidationOptions sets options of the validation, such as [csispec.WithCSISanity]. In
// a [Server], [csispec.WithCapabilities] is added with those that its services
// report.
func WithValidationOptions(opts ...csispec.Option) InterceptorOption {
	return interceptorOption(func(c *interceptorConfig) { c.validation = append(c.validation, opts...) })
}

// WithRequestValidation says what becomes of requests that break the rules. The
// default is [ValidationEnforce]. A driver that has made volumes with IDs of more than 128 bytes
// needs [ValidationWarn], or nobody can unpublish and delete them.
func WithRequestValidation(checks ValidationMode) InterceptorOption {
	return interceptorOption(func(c *interceptorConfig) { c.requests = checks })
}

// WithResponseValidation says what becomes of responses that break the rules. The
// default is [ValidationWarn], as the work has been done by then. [ValidationEnforce] is for tests: it
// answers INTERNAL instead, or UNAVAILABLE if the call changed something, which is
// not undone.
//
// A response with a string that is not valid UTF-8 is refused like that in any
// case: it cannot be sent, and gRPC would answer INTERNAL, by which a CO takes the
// call for one that has left nothing behind.
func WithResponseValidation(checks ValidationMode) InterceptorOption {
	return interceptorOption(func(c *interceptorConfig) { c.responses = checks })
}

// Validation judges requests and responses by the rules of [csispec.Validate]. A
// unary request that is refused reaches no interceptor further in; a streaming
// call is refused where the request is received, in front of the handler. What is
// sent on a stream of the SnapshotMetadata service is judged by
// [csispec.MetadataStream] as well; of one stream, only the first message that breaks
// rules is logged, while all are counted. A nil logger discards.
func Validation(logger *slog.Logger, opts ...InterceptorOption) Interceptor {
	return validation(orDiscard(logger), newInterceptorConfig(opts))
}

func validation(logger *slog.Logger, c interceptorConfig) Interceptor {
	v := validator{logger: logger, interceptorConfig: c}
	return Interceptor{
		Unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := v.request(ctx, info.FullMethod, req); err != nil {
				return nil, err
			}
			resp, err := next(ctx, req)
			if err != nil {
				return resp, err
			}
			if found := v.judge(resp); found != nil {
				if err := v.response(ctx, info.FullMethod, req, found, true); err != nil {
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
					first.set(m)
					return v.request(ctx, info.FullMethod, m)
				},
				onSend: func(m any) error {
					found := sent.judge(&v, first.get(), m)
					if found == nil {
						return nil
					}
					tell := !sent.told // a stream may have thousands with the same mistake
					sent.told = true
					return v.response(ctx, info.FullMethod, first.get(), found, tell)
				},
			})
		},
	}
}

type validator struct {
	logger *slog.Logger
	interceptorConfig
}

func (v *validator) request(ctx context.Context, method string, req any) error {
	if v.requests == ValidationOff {
		return nil
	}
	found := v.judge(req)
	if found == nil {
		return nil
	}
	callOf(ctx).countViolations(ctx, method, "request", found)
	if v.requests == ValidationEnforce {
		return found
	}
	v.warn(ctx, method, req, "request", found)
	return nil
}

// response decides what becomes of a response with something wrong, and tells of one
// that it lets pass.
func (v *validator) response(ctx context.Context, method string, req any, found *csispec.Violations, tell bool) error {
	unsendable := slices.ContainsFunc(found.All, func(x csispec.Violation) bool { return x.Rule == "utf-8" })
	if v.responses == ValidationOff && !unsendable {
		return nil
	}
	callOf(ctx).countViolations(ctx, method, "response", found)
	if v.responses == ValidationEnforce || unsendable {
		return status.Error(outcomeUnknown(method), found.Error())
	}
	if tell {
		v.warn(ctx, method, req, "response", found)
	}
	return nil
}

// judge returns nil if there is nothing wrong with m.
func (v *validator) judge(m any) *csispec.Violations {
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

func (v *validator) warn(ctx context.Context, method string, req any, message string, found *csispec.Violations) {
	v.logger.LogAttrs(ctx, slog.LevelWarn, message+" breaks rules of CSI", append(callAttrs(ctx, method, req),
		slog.String("error", strip(req, v.redactKeys, found.Error())))...)
}

// sentMessages is what is known of the messages sent on one stream. Nobody sends two
// at once.
type sentMessages struct {
	metadata *csispec.MetadataStream // from the first message on
	told     bool
}

func (s *sentMessages) judge(v *validator, req, m any) *csispec.Violations {
	found := v.judge(m)
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
	return &csispec.Violations{Subject: found.Subject, All: slices.Concat(found.All, inStream.All)}
}
