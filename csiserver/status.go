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
// Secrets that the request had before the handler, and the message echoes, are masked, as
// [csispec.Secrets.RedactText] does: see [WithRedactedKeys]. Messages are truncated to 4 KiB
// as they are sent: gRPC sends a byte that is not ASCII as three.
func StatusNormalization(opts ...InterceptorOption) Interceptor {
	return statusNormalization(newInterceptorConfig(opts))
}

func statusNormalization(c interceptorConfig) Interceptor {
	redactKeys := c.redactKeys
	return onlyCSI(Interceptor{
		Unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			ctx, c := enter(ctx)
			t := c.take(req, redactKeys)
			resp, err := next(ctx, req)
			if err != nil {
				return nil, normalize(info.FullMethod, t, err)
			}
			return resp, nil
		},
		Stream: func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			var first firstMessage
			err := next(srv, &stream{ServerStream: ss, ctx: ss.Context(), onRecv: func(m any) error {
				first.set(m, redactKeys)
				return nil
			}})
			return normalize(info.FullMethod, first.get(), err)
		},
	})
}

func normalize(method string, t *taken, err error) error {
	if err == nil {
		return err
	}
	code := csierr.CodeOf(err)
	if code == codes.Unavailable && !isClassified(err) {
		code = outcomeUnknown(method)
	}
	message := t.strip(messageOf(err))
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
	sent := 0
	for i := range len(message) {
		// The protocol escapes these bytes as %XX.
		if c := message[i]; c < ' ' || c > '~' || c == '%' {
			sent += 2
		}
		if sent++; sent > maxMessage {
			kept := strings.ToValidUTF8(message[:i], "")
			return fmt.Sprintf("%s... (%d bytes more)", kept, len(message)-len(kept))
		}
	}
	return message
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
