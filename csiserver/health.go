package csiserver

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// healthTimeout is how long a probe may take. Kubernetes asks for less by default
// (a second), which ends the request and with it the probe.
const healthTimeout = 3 * time.Second

// Health tells how the plugin is doing, in the place of the livenessprobe sidecar:
//
//   - /healthz connects to the plugin's own socket, as any client does, and calls
//     Probe: 200 if that says ready, else 500 with the reason. As with
//     livenessprobe, "not ready" is 500 too: give a plugin that starts slowly a
//     startupProbe.
//   - /readyz is the same, and 503 instead of 500.
//   - /debug shows what is going on, for people: the calls under way, and what
//     sections add. ?format=json, or a client that accepts application/json, gets
//     the same as JSON.
//
// Nothing here waits for a volume, a lock or another call. /debug shows volume IDs
// and paths, but nothing else of requests; serve it to those who may read the log.
// Before Serve and after it the plugin is neither healthy nor ready.
func (s *Server) Health(sections ...Section) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", s.probeHandler(http.StatusInternalServerError))
	mux.Handle("GET /readyz", s.probeHandler(http.StatusServiceUnavailable))
	mux.Handle("GET /debug", s.debugHandler(sections))
	return mux
}

func (s *Server) probeHandler(failed int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
		defer cancel()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if err := s.probe(ctx); err != nil {
			w.WriteHeader(failed)
			_, _ = io.WriteString(w, err.Error())
			return
		}
		_, _ = io.WriteString(w, "ok")
	})
}

// probe asks the plugin over its own socket. Each time it connects anew, or a
// socket file that is gone would not be noticed.
func (s *Server) probe(ctx context.Context) error {
	a := s.addr.Load()
	if a == nil {
		return fmt.Errorf("plugin %q is not serving", s.name)
	}
	conn, err := dialAddr(*a)
	if err != nil {
		return err
	}
	defer conn.Close()
	r, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{})
	if err != nil {
		return err
	}
	if ready := r.GetReady(); ready != nil && !ready.GetValue() { // absent means ready
		return fmt.Errorf("plugin %q is not ready", s.name)
	}
	return nil
}

// dialAddr makes a client of the plugin at a, which connects when it is used.
func dialAddr(a net.Addr) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///csi",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, a.Network(), a.String())
		}))
}
