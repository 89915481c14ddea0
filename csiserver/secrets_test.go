package csiserver_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
)

// pl4nted is in the echo of secret in every encoding.
const secret = "pl4nted/\"größe\"\a&+\\ tail"

// encodings are how a handler may echo a secret. csispec has the whole table.
var encodings = map[string]func(string) string{
	"verbatim":      func(s string) string { return s },
	"quoted":        strconv.Quote,
	"ASCII":         strconv.QuoteToASCII,
	"quoted twice":  func(s string) string { return strconv.Quote(strconv.Quote(s)) },
	"query":         url.QueryEscape,
	"path in lower": func(s string) string { return strings.ReplaceAll(url.PathEscape(s), "%2F", "%2f") },
	"URL":           func(s string) string { return url.UserPassword("me", s).String() },
	"map":           func(s string) string { return fmt.Sprintf("%#v", map[string]string{"password": s}) },
	"message": func(s string) string {
		return prototext.Format(&csi.NodePublishVolumeRequest{Secrets: map[string]string{"password": s}})
	},
}

// A handler takes the secrets out of its request before it fails: they must be found in
// every encoding, wherever the error goes.
func TestSecretsOfFailedCalls(t *testing.T) {
	ways := map[string]func(text string) error{
		"error":  errors.New,
		"status": func(text string) error { return status.Error(codes.Internal, text) },
		"panic":  func(text string) error { panic(text) },
	}
	for name, encode := range encodings {
		for way, fail := range ways {
			t.Run(name+"/"+way, func(t *testing.T) {
				book, spans := &logBook{}, spy{recorded: make(chan string, 1000)}
				echo := "refused " + encode(secret)
				p := serve(t, csiserver.WithLogger(book.logger(slog.LevelDebug-4)), csiserver.WithTracerProvider(spans),
					csiserver.WithNode(&node{publish: func(_ context.Context, r *csi.NodePublishVolumeRequest) error {
						clear(r.Secrets)
						r.VolumeCapability = nil
						return fail(echo)
					}}),
					csiserver.WithSnapshotMetadata(&metadata{allocated: func(r *csi.GetMetadataAllocatedRequest, _ csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
						r.Secrets = nil
						return fail(echo)
					}}))
				req := publishRequest()
				req.Secrets["password"] = secret
				_, unary := p.node().NodePublishVolume(t.Context(), req)
				_, stream := p.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: "snap-1", Secrets: map[string]string{"password": secret}})
				if err := p.wait(); err != nil {
					t.Error(err)
				}
				close(spans.recorded)
				places := map[string]string{"unary status": unary.Error(), "stream status": stream.Error(), "log": book.String()}
				for s := range spans.recorded {
					places["span"] += s + "\n"
				}
				for place, text := range places {
					if strings.Contains(text, "pl4nted") || strings.Contains(text, "tail") {
						t.Errorf("the %s has the secret: %s", place, text)
					}
					if way != "panic" && !strings.Contains(text, "refused") {
						t.Errorf("the %s lacks the error: %s", place, text)
					}
				}
				if n := strings.Count(book.String(), "refused "); n < 2 {
					t.Errorf("%d log lines of two calls: %s", n, book)
				}
			})
		}
	}
}

// A goroutine that a handler leaves behind may still write to the maps of the request, which
// ends the process if they are read then.
func TestRequestIsWrittenAfterTheCall(t *testing.T) {
	book := &logBook{}
	chain := csiserver.Chain(server(book.logger(slog.LevelInfo), csiserver.Validation(nil)))
	for i := range 2000 {
		req := publishRequest()
		written, stop := make(chan struct{}), make(chan struct{})
		done := make(chan struct{})
		_, err := chain(t.Context(), req, publishInfo, func(context.Context, any) (any, error) {
			go func() {
				defer close(done)
				for n := 0; ; n++ {
					req.Secrets[strconv.Itoa(n%64)] = "left behind"
					req.VolumeContext[strconv.Itoa(n%64)] = "left behind"
					if n == 0 {
						close(written)
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			}()
			<-written
			if i%2 == 0 {
				panic(req)
			}
			return nil, errors.New("no share for f1eld-s3cret")
		})
		close(stop)
		<-done
		if err == nil || strings.Contains(err.Error(), "f1eld-s3cret") {
			t.Fatal(err)
		}
	}
}

// An interceptor that masks other keys than the one further out has secrets of its own.
func TestInterceptorsWithDifferentKeys(t *testing.T) {
	book := &logBook{}
	logging := csiserver.Logging(book.logger(slog.LevelInfo))
	normal := csiserver.StatusNormalization(csiserver.WithRedactedKeys("mine"))
	_, err := csiserver.Chain([]csiserver.Interceptor{logging, normal})(t.Context(), publishRequest(), publishInfo,
		func(context.Context, any) (any, error) { return nil, errors.New("no share for k3y-s3cret") })
	if err == nil || strings.Contains(err.Error(), "k3y-s3cret") || strings.Contains(book.String(), "k3y-s3cret") {
		t.Errorf("%v: %s", err, book)
	}
}

// gRPC refuses some calls before a handler or an interceptor of them: the log has them.
func TestRefusedCallsAreLogged(t *testing.T) {
	book := &logBook{}
	p := serve(t, csiserver.WithLogger(book.logger(slog.LevelInfo)), csiserver.WithNode(&node{
		unpublish: func(context.Context, *csi.NodeUnpublishVolumeRequest) error { return errors.New("busy") },
	}))
	big := &csi.NodeUnpublishVolumeRequest{VolumeId: strings.Repeat("v", 5<<20), TargetPath: "/t"}
	if _, err := p.node().NodeUnpublishVolume(t.Context(), big, grpc.MaxCallSendMsgSize(16<<20)); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
	for _, method := range []string{"/csi.v1.Node/NodeTeleportVolume", "/csi.v9.Node/NodeStageVolume"} {
		if err := p.conn.Invoke(t.Context(), method, unpublishRequest, &csi.NodeUnpublishVolumeResponse{}); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", method, err)
		}
	}
	if _, err := p.node().NodeUnpublishVolume(t.Context(), unpublishRequest); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	refused, finished := book.lines(t, "rpc refused before it was handled"), book.lines(t, "rpc finished")
	if len(refused) != 1 || refused[0]["rpc"] != "NodeUnpublishVolume" || refused[0]["code"] != "ResourceExhausted" {
		t.Errorf("refused: %v", refused)
	}
	if len(finished) != 3 || finished[0]["rpc"] != "NodeTeleportVolume" || finished[1]["code"] != "Unimplemented" || finished[2]["code"] != "Unavailable" {
		t.Errorf("finished: %v", finished)
	}
}

// The bound of a message is that of its form on the wire.
func TestStatusIsBoundedOnTheWire(t *testing.T) {
	normal := csiserver.StatusNormalization()
	for _, text := range []string{strings.Repeat("\u20ac", 8<<10), strings.Repeat("%", 8<<10), strings.Repeat("x", 8<<10), "short \u20ac"} {
		_, err := normal.Unary(t.Context(), publishRequest(), publishInfo, func(context.Context, any) (any, error) {
			return nil, status.Error(codes.NotFound, text)
		})
		message := status.Convert(err).Message()
		wire := len(url.PathEscape(message)) // which escapes at least what gRPC does
		if wire > 4<<10+100 || len(text) > 100 && wire < 3<<10 || len(text) < 100 && message != text {
			t.Errorf("%.10s: %d bytes, %d on the wire", text, len(message), wire)
		}
	}
}
