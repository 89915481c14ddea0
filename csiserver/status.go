package csiserver

import (
	"context"
	"fmt"
	"strings"

	"github.com/csikit/csikit/csierr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// StatusNormalization turns the errors of CSI calls into statuses that follow the
// rules of the specification: a canonical code other than UNKNOWN, a message,
// no details.
//
// The code is that of [csierr.CodeOf]: of a csierr.Kind or a status that the error wraps, and
// DEADLINE_EXCEEDED or CANCELLED for an error of a context and for work still in flight. Any
// other error of a call that changes something becomes UNAVAILABLE, because its outcome is
// unknown and kubelet takes INTERNAL and UNKNOWN as proof that nothing is left behind; of a
// read-only call, INTERNAL.
//
// Secrets of the request that the message echoes are masked, as
// [csispec.Redacted.RedactText] does: see [WithRedactedKeys]. Messages
// are truncated to 4 KiB.
func StatusNormalization(opts ...InterceptorOption) Interceptor {
	return statusNormalization(newInterceptorConfig(opts))
}

func statusNormalization(c interceptorConfig) Interceptor {
	redactKeys := c.redactKeys
	return onlyCSI(Interceptor{
		Unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			resp, err := next(ctx, req)
			if err != nil {
				return nil, normalize(info.FullMethod, req, redactKeys, err)
			}
			return resp, nil
		},
		Stream: func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			var first firstMessage
			err := next(srv, &stream{ServerStream: ss, ctx: ss.Context(), onRecv: func(m any) error {
				first.set(m)
				return nil
			}})
			return normalize(info.FullMethod, first.get(), redactKeys, err)
		},
	})
}

func normalize(method string, req any, keys []string, err error) error {
	if err == nil {
		return err
	}
	code := csierr.CodeOf(err)
	if code == codes.Unavailable && !isClassified(err) {
		code = outcomeUnknown(method)
	}
	message := strip(req, keys, messageOf(err))
	if strings.TrimSpace(message) == "" {
		message = fmt.Sprintf("%s failed with %s and no message", shortName(method), code)
	}
	return status.Error(code, truncate(message))
}

// isClassified reports whether err has a code that the driver chose.
func isClassified(err error) bool {
	s, _ := statusOf(err)
	return s.Code() == codes.Unavailable || csierr.KindOf(err) != csierr.Unknown
}

// maxMessage bounds a status message, which travels in an HTTP/2 header: Go's client
// drops the whole connection over headers of 16 MiB, others refuse 8 KiB.
const maxMessage = 4 << 10

func truncate(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	kept := strings.ToValidUTF8(message[:maxMessage], "")
	return fmt.Sprintf("%s... (%d bytes more)", kept, len(message)-len(kept))
}

// messageOf is the text of err without the prefix that gRPC adds to the status in it.
func messageOf(err error) string {
	if s, carrier := statusOf(err); s != nil {
		if inner := carrier.Error(); inner != "" {
			return strings.Replace(err.Error(), inner, s.Message(), 1)
		}
	}
	return err.Error()
}
