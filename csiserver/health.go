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

// healthTimeout is how long a probe may take. The default timeout of Kubernetes is
// shorter (a second), and ends the request and with it the probe.
const healthTimeout = 3 * time.Second

// Health returns a handler for health pages, which replace the livenessprobe sidecar:
//
//   - /healthz connects to the plugin's own socket, as any client does, and calls
//     Probe: 200 if the plugin is ready, else 500 with the reason. As with
//     livenessprobe, "not ready" is 500 too: give a plugin that starts slowly a
//     startupProbe.
//   - /readyz is the same with the checks that sections add, and 503 instead of 500;
//     each check that fails has a line.
//   - /debug shows the calls in flight, and what sections add, as text; as JSON with
//     ?format=json or for a client that accepts application/json.
//
// Only problems that a restart repairs belong in /healthz: kubelet kills the plugin for
// them, and with a driver in user space its mounts. A node plugin that kubelet has not
// registered is healthy and not ready. In a DaemonSet, an unready pod only stops a
// rolling update.
//
// No page waits for a volume, a lock or another call. /debug shows volume IDs
// and paths, but nothing else of requests; restrict it to readers of the log.
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

// probe calls Probe over the plugin's own socket, each time on a new connection, to
// detect that the socket file was deleted.
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

// dialAddr returns a client of the plugin at a, which connects when it is used.
func dialAddr(a net.Addr) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///csi",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, a.Network(), a.String())
		}))
}
