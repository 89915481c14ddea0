package csiserver

import (
	"context"
	"errors"
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
//   - /readyz is the same with the checks that sections add, and 503 instead of 500:
//     each that fails has a line.
//   - /debug shows what is going on, for people: the calls under way, and what
//     sections add. ?format=json, or a client that accepts application/json, gets
//     the same as JSON.
//
// Only what a restart mends belongs into /healthz: kubelet kills the plugin for it,
// and with a driver in user space its mounts. A node plugin that kubelet has not
// registered is healthy and not ready. In a DaemonSet not being ready stops a rolling
// update, and nothing else.
//
// Nothing here waits for a volume, a lock or another call. /debug shows volume IDs
// and paths, but nothing else of requests; serve it to those who may read the log.
// Before Serve and after it the plugin is neither healthy nor ready.
func (s *Server) Health(sections ...HealthSection) http.Handler {
	mux := http.NewServeMux()
	tables := []HealthSection{{name: "calls", rows: s.callTable}}
	var checks []check
	for _, x := range sections {
		if x.check != nil {
			checks = append(checks, check{x.name, x.check})
		}
	}
	if len(checks) > 0 {
		tables = append(tables, HealthSection{name: "ready", rows: func() table { return checkTable(checks) }})
	}
	for _, x := range sections {
		if x.rows != nil {
			tables = append(tables, x)
		}
	}
	mux.Handle("GET /healthz", s.probeHandler(http.StatusInternalServerError, nil))
	mux.Handle("GET /readyz", s.probeHandler(http.StatusServiceUnavailable, checks))
	mux.Handle("GET /debug", s.debugHandler(tables))
	return mux
}

type check struct {
	name string
	run  func(context.Context) error
}

func (s *Server) probeHandler(failed int, checks []check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
		defer cancel()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		err := s.probe(ctx)
		for _, c := range checks {
			if e := c.run(ctx); e != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", c.name, e))
			}
		}
		if err != nil {
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
