package registration

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// BenchmarkGetInfo is the call for which kubelet waits a second: as kubelet
// calls, with a connection for each call, and with an open connection.
func BenchmarkGetInfo(b *testing.B) {
	path := filepath.Join(b.TempDir(), "s")
	r, err := New(Config{DriverName: "csi.example.com", Endpoint: path, KubeletEndpoint: path})
	if err != nil {
		b.Fatal(err)
	}
	lis, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	gs := r.newServer()
	go gs.Serve(lis)
	defer gs.Stop()
	b.Run("connecting", func(b *testing.B) {
		for b.Loop() {
			if _, err := probeSocket(b.Context(), path, time.Minute); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("connected", func(b *testing.B) {
		client, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{})))
		if err != nil {
			b.Fatal(err)
		}
		defer client.Close()
		var info pluginInfo
		for b.Loop() {
			if err := client.Invoke(b.Context(), methodGetInfo, empty{}, &info); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("answer", func(b *testing.B) {
		for b.Loop() {
			if _, err := (codec{}).Marshal(r.getInfo(b.Context())); err != nil {
				b.Fatal(err)
			}
		}
	})
}
