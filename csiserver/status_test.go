package csiserver_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/nodeops"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// nilStatus carries a status that is none.
type nilStatus struct{}

func (nilStatus) Error() string              { return "odd" }
func (nilStatus) GRPCStatus() *status.Status { return nil }

type okStatus struct{}

func (okStatus) Error() string              { return "odd" }
func (okStatus) GRPCStatus() *status.Status { return status.New(codes.OK, "fine") }

// inFlight is an error of work that has not ended.
type inFlight struct{ error }

func (inFlight) Pending() <-chan struct{} { return nil }

func TestStatusNormalization(t *testing.T) {
	detailed, err := status.New(codes.NotFound, "gone").WithDetails(&csi.ProbeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	plain := errors.New("disk on fire")
	for _, tt := range []struct {
		name    string
		err     error
		publish codes.Code // of NodePublishVolume, which changes something
		stats   codes.Code // of NodeGetVolumeStats, which asks
		text    string
	}{
		{"none", nil, codes.OK, codes.OK, ""},
		{"plain", plain, codes.Unavailable, codes.Internal, "disk on fire"},
		{"deadline", context.DeadlineExceeded, codes.DeadlineExceeded, codes.DeadlineExceeded, "context deadline exceeded"},
		{"deadline wrapped", fmt.Errorf("mount: %w", context.DeadlineExceeded), codes.DeadlineExceeded, codes.DeadlineExceeded, "mount: context deadline exceeded"},
		{"cancelled", fmt.Errorf("mount: %w", context.Canceled), codes.Canceled, codes.Canceled, "mount: context canceled"},
		{"status", status.Error(codes.NotFound, "gone"), codes.NotFound, codes.NotFound, "gone"},
		{"status wrapped", fmt.Errorf("find: %w", status.Error(codes.NotFound, "gone")), codes.NotFound, codes.NotFound, "find: gone"},
		{"status joined", errors.Join(plain, status.Error(codes.NotFound, "gone")), codes.NotFound, codes.NotFound, "disk on fire\ngone"},
		{"kind", csierr.NotFound, codes.NotFound, codes.NotFound, "not found"},
		{"kind wrapped", fmt.Errorf("volume v: %w", csierr.NotFound), codes.NotFound, codes.NotFound, "volume v: not found"},
		{"kind of the driver's", fmt.Errorf("attach: %w", csierr.Precondition.New("in use")), codes.FailedPrecondition, codes.FailedPrecondition, "attach: in use"},
		{"unknown kind", fmt.Errorf("array: %w", csierr.Unknown), codes.Unavailable, codes.Unavailable, "array: unknown"},
		{"uncertain", fmt.Errorf("array: %w", csierr.Uncertain), codes.Unavailable, codes.Unavailable, "array: outcome uncertain"},
		{"kind after a status", fmt.Errorf("array: %w: %w", status.Error(codes.NotFound, "gone"), csierr.Precondition), codes.FailedPrecondition, codes.FailedPrecondition, "array: gone: precondition not met"},
		{"kind after a final status", fmt.Errorf("array: %w: %w", status.Error(codes.NotFound, "gone"), csierr.Uncertain), codes.Unavailable, codes.Unavailable, "array: gone: outcome uncertain"},
		{"in flight", fmt.Errorf("%w: %w", csierr.NotFound, inFlight{errors.New("still running")}), codes.DeadlineExceeded, codes.DeadlineExceeded, "not found: still running"},
		{"node operation", fmt.Errorf("publish: %w", &nodeops.Error{Op: "publish", Path: "/p", Kind: csierr.Busy, Err: plain}), codes.Aborted, codes.Aborted, "publish: publish at /p: disk on fire"},
		{"unavailable", status.Error(codes.Unavailable, "down"), codes.Unavailable, codes.Unavailable, "down"},
		{"internal stays", status.Error(codes.Internal, "bug"), codes.Internal, codes.Internal, "bug"},
		{"details", detailed.Err(), codes.NotFound, codes.NotFound, "gone"},
		{"no message", status.Error(codes.Aborted, " "), codes.Aborted, codes.Aborted, " failed with Aborted and no message"},
		{"plain without text", errors.New(""), codes.Unavailable, codes.Internal, " and no message"},
		{"unknown", status.Error(codes.Unknown, "what"), codes.Unavailable, codes.Internal, "what"},
		{"no canonical code", status.Error(42, "what"), codes.Unavailable, codes.Internal, "what"},
		{"nil status", nilStatus{}, codes.Unavailable, codes.Internal, "odd"},
		{"ok status", okStatus{}, codes.Unavailable, codes.Internal, ""},
		{"secret", errors.New("login as f1eld-s3cret refused"), codes.Unavailable, codes.Internal, "login as ***stripped*** refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			check := func(method string, err error, want codes.Code) {
				t.Helper()
				s, _ := status.FromError(err)
				if s.Code() != want || !strings.HasSuffix(s.Message(), tt.text) || len(s.Details()) != 0 || err != nil && s.Message() == "" {
					t.Errorf("%s: %v with %d details, want %v, %q", method, s, len(s.Details()), want, tt.text)
				}
			}
			interceptor := csiserver.StatusNormalization()
			unary := func(method string, req any) error {
				_, err := interceptor.Unary(t.Context(), req, &grpc.UnaryServerInfo{FullMethod: method},
					func(context.Context, any) (any, error) { return nil, tt.err })
				return err
			}
			secrets := map[string]string{"password": "f1eld-s3cret"}
			check("publish", unary("/csi.v1.Node/NodePublishVolume", &csi.NodePublishVolumeRequest{Secrets: secrets}), tt.publish)
			check("stats", unary("/csi.v1.Controller/ListSnapshots", &csi.ListSnapshotsRequest{Secrets: secrets}), tt.stats)
			check("stream", interceptor.Stream(nil, &fakeStream{ctx: t.Context(), secrets: secrets}, &grpc.StreamServerInfo{FullMethod: "/csi.v1.SnapshotMetadata/GetMetadataDelta"},
				func(_ any, ss grpc.ServerStream) error {
					if err := ss.RecvMsg(&csi.GetMetadataDeltaRequest{}); err != nil {
						return err
					}
					return tt.err
				}), tt.stats)
			// Services other than CSI's have rules of their own.
			if err := unary("/grpc.health.v1.Health/Check", nil); !errors.Is(err, tt.err) {
				t.Errorf("a foreign service gets %v", err)
			}
		})
	}
}

// The output of a program that went mad must not take the connection down, with
// every call on it, as a message of 16 MiB does.
func TestStatusIsBounded(t *testing.T) {
	p := serve(t, csiserver.WithNode(&node{publish: func(context.Context, *csi.NodePublishVolumeRequest) error {
		return status.Error(codes.Aborted, "mkfs failed: "+strings.Repeat("\u20ac", 6<<20))
	}}))
	_, err := p.node().NodePublishVolume(t.Context(), publishRequest())
	s, _ := status.FromError(err)
	if s.Code() != codes.Aborted || len(s.Message()) > 5<<10 || !strings.HasPrefix(s.Message(), "mkfs failed: \u20ac") ||
		!utf8.ValidString(s.Message()) || !strings.HasSuffix(s.Message(), " bytes more)") {
		t.Errorf("%v, %d bytes: %.200s", s.Code(), len(s.Message()), s.Message())
	}
}

type fakeStream struct {
	grpc.ServerStream
	ctx     context.Context
	secrets map[string]string
}

func (s *fakeStream) Context() context.Context { return s.ctx }
func (s *fakeStream) RecvMsg(m any) error {
	m.(*csi.GetMetadataDeltaRequest).Secrets = s.secrets
	return nil
}

// TestMutatingMethods holds the list of calls whose outcome matters to the
// services: whatever is not on the list only asks.
func TestMutatingMethods(t *testing.T) {
	interceptor := csiserver.StatusNormalization()
	var got []string
	for i := range csi.File_csi_proto.Services().Len() {
		s := csi.File_csi_proto.Services().Get(i)
		for j := range s.Methods().Len() {
			m := s.Methods().Get(j)
			_, err := interceptor.Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/" + string(s.FullName()) + "/" + string(m.Name())},
				func(context.Context, any) (any, error) { return nil, errors.New("x") })
			if status.Code(err) == codes.Unavailable {
				got = append(got, string(m.Name()))
			}
		}
	}
	want := "CreateVolume DeleteVolume ControllerPublishVolume ControllerUnpublishVolume CreateSnapshot DeleteSnapshot " +
		"ControllerExpandVolume ControllerModifyVolume CreateVolumeGroupSnapshot DeleteVolumeGroupSnapshot " +
		"NodeStageVolume NodeUnstageVolume NodePublishVolume NodeUnpublishVolume NodeExpandVolume"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
}
