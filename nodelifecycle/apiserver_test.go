package nodelifecycle

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// An apiServer behaves like Kubernetes' for the requests of this package: it wants the current
// token, applies a JSON Patch to the newest state as a whole or not at all (422), pages
// lists, and answers errors with a Status object.
type apiServer struct {
	mu      sync.Mutex
	tokens  []string // that it accepts
	node    *nodeObject
	drivers []string // of the CSINode; nil without the object
	volumes []attachment
	writes  int
	paths   []string // of the requests that it received

	// before is called before each request, and must not block; true says that it has answered.
	before func(w http.ResponseWriter, r *http.Request) bool
}

type attachment struct{ node, attacher, volume string }

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths = append(s.paths, r.Method+" "+r.URL.Path)
	if s.before != nil && s.before(w, r) {
		return
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || !slices.Contains(s.tokens, token) {
		fail(w, http.StatusUnauthorized, "Unauthorized")
		return
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /api/v1/nodes/n1":
		if s.node == nil {
			fail(w, http.StatusNotFound, `nodes "n1" not found`)
			return
		}
		answer(w, s.node)
	case "PATCH /api/v1/nodes/n1":
		s.patch(w, r)
	case "GET /apis/storage.k8s.io/v1/csinodes/n1":
		if s.drivers == nil {
			fail(w, http.StatusNotFound, `csinodes.storage.k8s.io "n1" not found`)
			return
		}
		drivers := []map[string]any{}
		for _, d := range s.drivers {
			drivers = append(drivers, map[string]any{"name": d, "nodeID": "n1", "topologyKeys": nil})
		}
		answer(w, map[string]any{"spec": map[string]any{"drivers": drivers}})
	case "GET /apis/storage.k8s.io/v1/volumeattachments":
		s.list(w, r)
	default:
		fail(w, http.StatusForbidden, "forbidden: "+r.Method+" "+r.URL.Path)
	}
}

func (s *apiServer) patch(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Content-Type") != "application/json-patch+json" {
		fail(w, http.StatusUnsupportedMediaType, "the body of the request was in an unknown format")
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	taints, err := applyPatch(s.node.Spec.Taints, body)
	if err != nil {
		fail(w, http.StatusUnprocessableEntity, "the server rejected our request due to an error in our request")
		return
	}
	s.node.Spec.Taints, s.writes = taints, s.writes+1
	answer(w, s.node)
}

// applyPatch applies test and remove to a copy of taints.
func applyPatch(taints []taint, text []byte) ([]taint, error) {
	var patch []struct{ Op, Path, Value string }
	if err := json.Unmarshal(text, &patch); err != nil {
		return nil, err
	}
	taints = slices.Clone(taints)
	for _, o := range patch {
		parts := strings.Split(strings.TrimPrefix(o.Path, "/spec/taints/"), "/")
		i, err := strconv.Atoi(parts[0])
		if err != nil || i < 0 || i >= len(taints) {
			return nil, fmt.Errorf("%s does not exist", o.Path)
		}
		switch {
		case o.Op == "remove" && len(parts) == 1:
			taints = slices.Delete(taints, i, i+1)
		case o.Op == "test" && len(parts) == 2 && parts[1] == "key" && taints[i].Key == o.Value,
			o.Op == "test" && len(parts) == 2 && parts[1] == "effect" && taints[i].Effect == o.Value:
		default:
			return nil, fmt.Errorf("%s %s failed", o.Op, o.Path)
		}
	}
	return taints, nil
}

func (s *apiServer) list(w http.ResponseWriter, r *http.Request) {
	if s.volumes == nil {
		s.volumes = []attachment{}
	}
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil {
		panic(err)
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	to := min(from+limit, len(s.volumes))
	items, next := []any{}, ""
	for _, a := range s.volumes[from:to] {
		items = append(items, map[string]any{
			"metadata": map[string]any{"name": "csi-" + a.volume},
			"spec": map[string]any{
				"attacher": a.attacher, "nodeName": a.node, "source": map[string]any{"persistentVolumeName": a.volume},
			},
		})
	}
	if to < len(s.volumes) {
		next = strconv.Itoa(to)
	}
	answer(w, map[string]any{"metadata": map[string]any{"continue": next}, "items": items})
}

func answer(w http.ResponseWriter, o any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(o); err != nil {
		panic(err)
	}
}

func fail(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","status":"Failure","message":%q,"code":%d}`, message, code)
}

// change alters the server while requests are served.
func (s *apiServer) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func newAPIServer(taints ...taint) *apiServer {
	s := &apiServer{tokens: []string{"token-1"}, node: &nodeObject{}, drivers: []string{}}
	s.node.Spec.Taints = taints
	return s
}

const driver = "csi.example.com"

var (
	agentNotReady = taint{"csi.example.com/agent-not-ready", "NoExecute"}
	other         = taint{"other.example.com/agent-not-ready", "NoExecute"}
	notReady      = taint{"node.kubernetes.io/not-ready", "NoSchedule"}
)

// nodeOf returns a Node whose requests reach the server without a network, so that it can run in
// a bubble of synctest.
func nodeOf(t *testing.T, s http.Handler) *Node {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "token"), "token-1\n")
	n, err := New(Config{
		NodeName: "n1", DriverName: driver, Server: "https://10.0.0.1:443",
		TokenFile: filepath.Join(dir, "token"), CAFile: filepath.Join(dir, "ca.crt"),
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	n.transport = func() (http.RoundTripper, error) { return direct{s}, nil }
	return n
}

// direct is a transport to a handler in this process.
type direct struct{ http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	if w.Code == silentCode {
		<-r.Context().Done()
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if w.Code == 0 || w.Code == refusedCode {
		return nil, errRefused
	}
	return w.Result(), nil
}

// refusedCode makes direct fail as if nothing listened.
const refusedCode = 599

// silentCode makes direct never answer. The server itself must not wait, because it holds a
// mutex: a goroutine that waits for one keeps the bubble's time from passing.
const silentCode = 598

var errRefused = fmt.Errorf("connect: connection refused")

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// within returns a context that ends after d of the bubble's time.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
