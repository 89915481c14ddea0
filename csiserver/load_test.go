package csiserver_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// dial makes a connection of its own, as kubelet does for each call.
func (p *plugin) dial() *grpc.ClientConn {
	p.t.Helper()
	conn, err := grpc.NewClient(p.conn.Target(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	return conn
}

// A thousand clients are inside at once, and the probe is answered meanwhile.
func TestThousandClients(t *testing.T) {
	const n = 1000
	var inside atomic.Int64
	release := make(chan struct{})
	p := serve(t, csiserver.WithNode(&node{unpublish: func(context.Context, *csi.NodeUnpublishVolumeRequest) error {
		inside.Add(1)
		<-release
		return nil
	}}))
	var clients sync.WaitGroup
	for range n {
		clients.Go(func() {
			conn := p.dial()
			defer conn.Close()
			// On a machine that is too busy, a connection may fail, also one that has the call
			// already. Both are tried again, as by a CO.
			err := status.Error(codes.Unavailable, "not tried")
			for status.Code(err) == codes.Unavailable {
				_, err = csi.NewNodeClient(conn).NodeUnpublishVolume(t.Context(), unpublishRequest, grpc.WaitForReady(true))
			}
			if err != nil {
				t.Error(err)
				inside.Add(1) // it is not waited for
			}
		})
	}
	until(func() bool { return inside.Load() >= n })
	p.probe()
	close(release)
	clients.Wait()
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}

// Under load, in kubelet's pattern of a connection for each call, calls in flight when
// the plugin stops get their response, and all others an error of unknown outcome.
func TestStopUnderLoadLosesNoAnswer(t *testing.T) {
	const clients, enough = 16, 200
	var handled, answered atomic.Int64
	p := serve(t, csiserver.WithNode(&node{unpublish: func(context.Context, *csi.NodeUnpublishVolumeRequest) error {
		handled.Add(1)
		return nil
	}}))
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			kept := p.dial()
			defer func() { kept.Close() }()
			for {
				conn := kept
				if i%2 == 0 {
					conn = p.dial()
				}
				_, err := csi.NewNodeClient(conn).NodeUnpublishVolume(t.Context(), unpublishRequest)
				if conn != kept {
					conn.Close()
				}
				if err != nil {
					if status.Code(err) != codes.Unavailable {
						t.Errorf("after the stop: %v", err)
					}
					return
				}
				if answered.Add(1) == enough {
					p.stop()
				}
			}
		})
	}
	wg.Wait()
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	if h, a := handled.Load(), answered.Load(); h != a {
		t.Errorf("%d calls were handled, %d answered", h, a)
	}
}

// bytesCodec sends what no client of protobuf would.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) ([]byte, error)   { return v.([]byte), nil }
func (bytesCodec) Unmarshal(_ []byte, _ any) error { return nil }
func (bytesCodec) Name() string                    { return "proto" }

func TestHostileMessages(t *testing.T) {
	p := serve(t, csiserver.WithNode(&node{
		unpublish: func(context.Context, *csi.NodeUnpublishVolumeRequest) error {
			t.Error("the handler was reached")
			return nil
		},
		stats: func(context.Context, *csi.NodeGetVolumeStatsRequest) error {
			return errors.New("disk \xff\xfe on fire")
		},
	}))
	raw := func(message string) error {
		return p.conn.Invoke(t.Context(), unpublishInfo.FullMethod, []byte(message), new([]byte), grpc.ForceCodec(bytesCodec{}))
	}
	for _, tt := range []struct {
		name, message string
		want          codes.Code
	}{
		{"invalid UTF-8", "\x0a\x01\xff\x12\x02/t", codes.Internal},
		{"no message", "\xff\xff\xff", codes.Internal},
		{"truncated", "\x0a\x7fvol", codes.Internal},
		{"oversize", "\x0a\x85\x80\x80\x02" + strings.Repeat("v", 4<<20+5), codes.ResourceExhausted},
		{"empty", "", codes.InvalidArgument},
		{"unknown fields alone", "\xfa\x7f\x01x", codes.InvalidArgument},
	} {
		if err := raw(tt.message); status.Code(err) != tt.want {
			t.Errorf("%s: %.200v, want %v", tt.name, err, tt.want)
		}
		p.probe()
	}
	_, err := p.node().NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "/p"})
	if s := status.Convert(err); s.Code() != codes.Internal || !utf8.ValidString(s.Message()) || !strings.Contains(s.Message(), "on fire") {
		t.Errorf("an error that is not UTF-8: %q", s.Message())
	}
}
