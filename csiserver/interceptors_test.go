package csiserver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var unpublishInfo = &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Node/NodeUnpublishVolume"}

// A call that hangs is seen while it does.
func TestLogOfSlowCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &logBook{}
		l := csiserver.Logging(book.logger(slog.LevelInfo), csiserver.WithSlowCallsAfter(time.Minute))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		ids := csiserver.RequestIDs()
		ids.Unary(ctx, unpublishRequest, unpublishInfo, func(ctx context.Context, req any) (any, error) {
			return l.Unary(ctx, req, unpublishInfo, func(context.Context, any) (any, error) {
				time.Sleep(59 * time.Second)
				if book.String() != "" {
					t.Errorf("too early: %s", book)
				}
				time.Sleep(2 * time.Second)
				return nil, nil
			})
		})
		slow, finished := book.lines(t, "rpc is still running"), book.lines(t, "rpc finished")
		if len(slow) != 1 || len(finished) != 1 {
			t.Fatalf("%s", book)
		}
		for k, want := range map[string]any{"level": "WARN", "rpc": "NodeUnpublishVolume", "volume_id": "vol-1", "target_path": "/pods/1/mount",
			"duration": float64(time.Minute), "caller_waits_for": float64(time.Minute), "request_id": finished[0]["request_id"]} {
			if slow[0][k] != want {
				t.Errorf("%s is %v, want %v", k, slow[0][k], want)
			}
		}
	})
}

// A stream is slow, too, even before its request has come.
func TestLogOfSlowStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &logBook{}
		l := csiserver.Logging(book.logger(slog.LevelInfo))
		l.Stream(nil, serverStream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: "/csi.v1.SnapshotMetadata/GetMetadataDelta"}, func(any, grpc.ServerStream) error {
			time.Sleep(time.Hour)
			return nil
		})
		if slow := book.lines(t, "rpc is still running"); len(slow) != 1 || slow[0]["rpc"] != "GetMetadataDelta" {
			t.Errorf("%s", book)
		}
	})
}

type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s serverStream) Context() context.Context { return s.ctx }

func TestLogLevel(t *testing.T) {
	book := &logBook{}
	const trace = slog.LevelDebug - 4
	p := serve(t, csiserver.WithLogger(book.logger(slog.LevelDebug)),
		csiserver.WithLogLevel(func(method string) slog.Level {
			if method == "/csi.v1.Identity/Probe" {
				return trace
			}
			return slog.LevelInfo
		}),
		csiserver.WithNode(&node{stats: func(context.Context, *csi.NodeGetVolumeStatsRequest) error { return nil }}))
	p.probe()
	if _, err := p.node().NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "/p"}); err != nil {
		t.Error(err)
	}
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	started, finished := book.lines(t, "rpc started"), book.lines(t, "rpc finished")
	if len(started) != 1 || len(finished) != 1 || finished[0]["level"] != "INFO" || finished[0]["rpc"] != "NodeGetVolumeStats" {
		t.Errorf("%s", book)
	}
}

// Two logs around one call do not get into each other's way.
func TestLogTwice(t *testing.T) {
	outer, inner := &logBook{}, &logBook{}
	p := serve(t, csiserver.WithLogger(outer.logger(slog.LevelInfo)),
		csiserver.WithInterceptors(csiserver.Logging(inner.logger(slog.LevelInfo))),
		csiserver.WithNode(&node{unpublish: func(context.Context, *csi.NodeUnpublishVolumeRequest) error { return nil }}))
	for range 3 {
		if _, err := p.node().NodeUnpublishVolume(t.Context(), unpublishRequest); err != nil {
			t.Error(err)
		}
	}
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	a, b := outer.lines(t, "rpc finished"), inner.lines(t, "rpc finished")
	if len(a) != 3 || len(b) != 3 || a[2]["request_id"] == nil || a[2]["request_id"] != b[2]["request_id"] {
		t.Errorf("%s\n%s", outer, inner)
	}
}

// A mistake that Go makes easy: the error is not nil, but the pointer in it is.
type pathError struct{ path string }

func (e *pathError) Error() string { return e.path + " is busy" }

// The Error method of such an error panics. The interceptors call it, and gRPC itself,
// where no recovery protects the process.
func TestErrorThatPanics(t *testing.T) {
	book := &logBook{}
	p := serve(t, csiserver.WithLogger(book.logger(slog.LevelInfo)), csiserver.WithNode(&node{
		publish: func(context.Context, *csi.NodePublishVolumeRequest) error { var err *pathError; return err },
		stats: func(context.Context, *csi.NodeGetVolumeStatsRequest) error {
			return fmt.Errorf("stat: %w", (*pathError)(nil))
		},
	}), csiserver.WithSnapshotMetadata(&metadata{allocated: func(*csi.GetMetadataAllocatedRequest, csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
		var err *pathError
		return err
	}}))
	if _, err := p.node().NodePublishVolume(t.Context(), publishRequest()); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	if _, err := p.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: "s"}); status.Code(err) != codes.Internal {
		t.Error(err)
	}
	if n := len(book.lines(t, "rpc panicked")); n != 2 {
		t.Errorf("%d panics logged: %s", n, book)
	}
	p.probe()
}

// A handler whose goroutine ends, as t.FailNow of a fake does, never answers. That
// it did not succeed is the least that the log must say.
func TestGoexit(t *testing.T) {
	book := &logBook{}
	interceptor := csiserver.Recovery(book.logger(slog.LevelInfo))
	done := make(chan struct{})
	go func() {
		defer close(done)
		interceptor.Unary(t.Context(), unpublishRequest, unpublishInfo, func(context.Context, any) (any, error) {
			runtime.Goexit()
			return nil, nil
		})
		t.Error("the goroutine went on")
	}()
	<-done
	lines := book.lines(t, "rpc panicked")
	if len(lines) != 1 || !strings.Contains(fmt.Sprint(lines[0]["panic"]), "Goexit") || lines[0]["volume_id"] != "vol-1" {
		t.Errorf("%s", book)
	}
}

// Programs that set panicnil get nil from recover, which the recovery of
// go-grpc-middleware takes for a handler that returned.
func TestPanicNil(t *testing.T) {
	t.Setenv("GODEBUG", "panicnil=1")
	book := &logBook{}
	interceptor := csiserver.Recovery(book.logger(slog.LevelInfo))
	if _, err := interceptor.Unary(t.Context(), unpublishRequest, unpublishInfo, func(context.Context, any) (any, error) { panic(nil) }); err == nil {
		t.Error("unary: no error")
	}
	if err := interceptor.Stream(nil, serverStream{ctx: t.Context()}, &grpc.StreamServerInfo{}, func(any, grpc.ServerStream) error { panic(nil) }); err == nil {
		t.Error("stream: no error")
	}
	if lines := book.lines(t, "rpc panicked"); len(lines) != 2 {
		t.Errorf("%s", book)
	}
}

// Of a message in a panic only the name is printed.
func TestPanicWithTheRequest(t *testing.T) {
	book := &logBook{}
	interceptor := csiserver.Recovery(book.logger(slog.LevelInfo))
	req := publishRequest()
	req.Secrets = map[string]string{"pin": "p!n"} // too short to be looked for in a text
	_, err := interceptor.Unary(t.Context(), req, publishInfo, func(_ context.Context, r any) (any, error) { panic(r) })
	if err == nil || strings.Contains(book.String(), "p!n") || !strings.Contains(book.String(), "csi.v1.NodePublishVolumeRequest") {
		t.Errorf("%v: %s", err, book)
	}
}

// Bytes are printed as text, because a secret is found only in a text.
func TestPanicWithBytes(t *testing.T) {
	book := &logBook{}
	interceptor := csiserver.Recovery(book.logger(slog.LevelInfo))
	req := publishRequest()
	req.Secrets = map[string]string{"key": "correct horse"}
	_, err := interceptor.Unary(t.Context(), req, publishInfo, func(context.Context, any) (any, error) { panic([]byte("key correct horse")) })
	if lines := book.lines(t, "rpc panicked"); err == nil || len(lines) != 1 || lines[0]["panic"] != "key ***stripped***" {
		t.Errorf("%v: %s", err, book)
	}
}

func TestChecks(t *testing.T) {
	bad := &csi.NodeUnpublishVolumeRequest{VolumeId: "vol-1"}
	for _, tt := range []struct {
		opts              []csiserver.Option
		request, response codes.Code
		logged            []string
	}{
		{nil, codes.InvalidArgument, codes.OK, []string{"response breaks rules of CSI"}},
		{[]csiserver.Option{csiserver.WithRequestValidation(csiserver.ValidationWarn), csiserver.WithResponseValidation(csiserver.ValidationEnforce)}, codes.OK, codes.Internal, []string{"request breaks rules of CSI"}},
		{[]csiserver.Option{csiserver.WithRequestValidation(csiserver.ValidationOff), csiserver.WithResponseValidation(csiserver.ValidationOff)}, codes.OK, codes.OK, nil},
	} {
		t.Run(fmt.Sprint(tt.request, tt.response), func(t *testing.T) {
			book := &logBook{}
			p := serve(t, append(tt.opts, csiserver.WithLogger(book.logger(slog.LevelInfo)), csiserver.WithNode(&badNode{}),
				csiserver.WithSnapshotMetadata(&metadata{allocated: func(_ *csi.GetMetadataAllocatedRequest, s csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
					return s.Send(&csi.GetMetadataAllocatedResponse{BlockMetadataType: 42})
				}}))...)
			if _, err := p.node().NodeUnpublishVolume(t.Context(), bad); status.Code(err) != tt.request {
				t.Errorf("request: %v", err)
			}
			if _, err := p.node().NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}); status.Code(err) != tt.response {
				t.Errorf("response: %v", err)
			}
			n, err := p.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: "s"})
			if sent := tt.response == codes.OK; (n == 1) != sent || !sent && status.Code(err) != tt.response {
				t.Errorf("stream: %d messages, %v", n, err)
			}
			if err := p.wait(); err != nil {
				t.Error(err)
			}
			for _, msg := range []string{"request breaks rules of CSI", "response breaks rules of CSI"} {
				if got := len(book.lines(t, msg)) > 0; got != slices.Contains(tt.logged, msg) {
					t.Errorf("%q logged: %v: %s", msg, got, book)
				}
			}
		})
	}
}

// What no single message of a stream shows is validated as messages are sent, and
// logged once, however many follow.
func TestStreamIsValidated(t *testing.T) {
	block := func(offset, size int64) *csi.GetMetadataAllocatedResponse {
		return &csi.GetMetadataAllocatedResponse{BlockMetadataType: csi.BlockMetadataType_FIXED_LENGTH, VolumeCapacityBytes: 1 << 20,
			BlockMetadata: []*csi.BlockMetadata{{ByteOffset: offset, SizeBytes: size}}}
	}
	send := func(_ *csi.GetMetadataAllocatedRequest, s csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
		for _, m := range []*csi.GetMetadataAllocatedResponse{block(8192, 4096), block(4096, 4096), block(0, 4096), block(16384, 512)} {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		return nil
	}
	for _, tt := range []struct {
		checks   csiserver.ValidationMode
		messages int
		code     codes.Code
		logged   int
	}{
		{csiserver.ValidationWarn, 4, codes.OK, 1},
		{csiserver.ValidationEnforce, 1, codes.Internal, 0},
		{csiserver.ValidationOff, 4, codes.OK, 0},
	} {
		book, ledger := &logBook{}, &ledger{}
		p := serve(t, csiserver.WithLogger(book.logger(slog.LevelInfo)), csiserver.WithResponseValidation(tt.checks), csiserver.WithMeterProvider(ledger),
			csiserver.WithSnapshotMetadata(&metadata{allocated: send}))
		n, err := p.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: "s"})
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if n != tt.messages || status.Code(err) != tt.code {
			t.Errorf("%v: %d messages, %v", tt.checks, n, err)
		}
		if lines := book.lines(t, "response breaks rules of CSI"); len(lines) != tt.logged || tt.logged > 0 && !strings.Contains(fmt.Sprint(lines[0]["error"]), "before the end") {
			t.Errorf("%v: %s", tt.checks, book)
		}
		if tt.checks == csiserver.ValidationWarn {
			for rule, want := range map[string]int64{"metadata-order": 2, "metadata-length": 1} {
				if got := ledger.all()["csikit.csiserver.violations{message=response,method=/csi.v1.SnapshotMetadata/GetMetadataAllocated,rule="+rule+"}"]; got != want {
					t.Errorf("%s counted %d times, want %d: %v", rule, got, want, ledger.all())
				}
			}
		}
	}
}

// What cannot be sent must not become INTERNAL, which gRPC would answer: kubelet
// takes that as proof that nothing is left behind, and a provisioner that no volume
// was made.
func TestResponseThatCannotBeSent(t *testing.T) {
	for _, checks := range []csiserver.ValidationMode{csiserver.ValidationEnforce, csiserver.ValidationWarn, csiserver.ValidationOff} {
		book := &logBook{}
		p := serve(t, csiserver.WithLogger(book.logger(slog.LevelInfo)), csiserver.WithResponseValidation(checks),
			csiserver.WithController(&latin1{}))
		c := csi.NewControllerClient(p.conn)
		_, err := c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "v", VolumeCapabilities: []*csi.VolumeCapability{publishRequest().VolumeCapability}})
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "volume.volume_context") {
			t.Errorf("%v: CreateVolume: %v", checks, err)
		}
		_, err = c.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: "v"})
		if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "volume.volume_id") {
			t.Errorf("%v: ControllerGetVolume: %v", checks, err)
		}
		if n := len(book.lines(t, "rpc finished")); n == 0 || strings.Contains(book.String(), `"code":"OK"`) {
			t.Errorf("%v: the log reports a success: %s", checks, book)
		}
	}
}

// latin1 has got its strings from a storage system of the nineties.
type latin1 struct{ controller }

func (*latin1) CreateVolume(context.Context, *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v", VolumeContext: map[string]string{"pool": "m\xfcll"}}}, nil
}

func (*latin1) ControllerGetVolume(context.Context, *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	return &csi.ControllerGetVolumeResponse{Volume: &csi.Volume{VolumeId: "\xfc"}, Status: &csi.ControllerGetVolumeResponse_VolumeStatus{}}, nil
}

// badNode answers what the specification does not allow.
type badNode struct{ node }

func (*badNode) NodeUnpublishVolume(context.Context, *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (*badNode) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: strings.Repeat("n", 300)}, nil
}

func TestLimits(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	p := serve(t,
		csiserver.WithLimits(map[string]csiserver.Limit{
			"NodeUnpublishVolume":  {InFlight: 1},
			"NodeGetVolumeStats":   {Timeout: time.Millisecond},
			"GetMetadataAllocated": {Timeout: time.Millisecond},
		}),
		csiserver.WithNode(&node{
			unpublish: func(context.Context, *csi.NodeUnpublishVolumeRequest) error {
				entered <- struct{}{}
				<-release
				return nil
			},
			publish: func(ctx context.Context, _ *csi.NodePublishVolumeRequest) error {
				if _, ok := ctx.Deadline(); ok {
					t.Error("a deadline without a limit")
				}
				return nil
			},
			stats: func(ctx context.Context, _ *csi.NodeGetVolumeStatsRequest) error {
				<-ctx.Done()
				return ctx.Err()
			},
		}),
		csiserver.WithSnapshotMetadata(&metadata{allocated: func(_ *csi.GetMetadataAllocatedRequest, s csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
			<-s.Context().Done()
			return s.Context().Err()
		}}))
	first := make(chan error, 1)
	go func() {
		_, err := p.node().NodeUnpublishVolume(context.Background(), unpublishRequest)
		first <- err
	}()
	<-entered
	// What kubelet takes neither for a result nor for a full node.
	if _, err := p.node().NodeUnpublishVolume(t.Context(), unpublishRequest); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "1 such calls are running") {
		t.Errorf("the second call: %v", err)
	}
	p.probe()
	if _, err := p.node().NodePublishVolume(t.Context(), publishRequest()); err != nil {
		t.Errorf("another method: %v", err)
	}
	release <- struct{}{}
	if err := <-first; err != nil {
		t.Error(err)
	}
	go func() { <-entered; close(release) }()
	if _, err := p.node().NodeUnpublishVolume(t.Context(), unpublishRequest); err != nil {
		t.Errorf("the place was not given back: %v", err)
	}
	if _, err := p.node().NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "/p"}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("unary timeout: %v", err)
	}
	if _, err := p.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: "s"}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("stream timeout: %v", err)
	}
}

func TestLimitsRefused(t *testing.T) {
	_, err := csiserver.New(info, csiserver.WithLimits(map[string]csiserver.Limit{
		"NodeStage": {}, "NodeStageVolume": {InFlight: -1}, "Probe": {InFlight: 1}, "GetMetadataDelta": {InFlight: 4},
	}))
	for _, text := range []string{"NodeStage: CSI has no such method", "NodeStageVolume: is negative", "limit of Probe"} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %q", err, text)
		}
	}
}
