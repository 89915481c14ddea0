package csiserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
)

func get(t *testing.T, h http.Handler, target string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestHealth(t *testing.T) {
	ready, failure := false, error(nil)
	s := newServer(t, csiserver.WithReady(func(context.Context) (bool, error) { return ready, failure }))
	h := s.Health()
	check := func(path string, code int, text string) {
		t.Helper()
		if w := get(t, h, path); w.Code != code || !strings.Contains(w.Body.String(), text) {
			t.Errorf("%s: %d %q, want %d %q", path, w.Code, w.Body, code, text)
		}
	}
	check("/healthz", 500, "is not serving")
	check("/readyz", 503, "is not serving")

	p := start(t, s, listen(t, dir(t)+"/csi.sock", csiserver.WithFileInterval(time.Hour)))
	p.probe()
	check("/healthz", 500, `plugin "test.csikit.dev" is not ready`)
	check("/readyz", 503, "not ready")
	ready = true
	check("/healthz", 200, "ok")
	check("/readyz", 200, "ok")
	failure = errors.New("the backend is gone")
	check("/healthz", 500, "the backend is gone")
	failure = nil

	// What no call over a connection that is open would notice.
	if err := os.Remove(strings.TrimPrefix(p.conn.Target(), "unix://")); err != nil {
		t.Fatal(err)
	}
	check("/healthz", 500, "no such file")

	if err := p.wait(); err != nil {
		t.Error(err)
	}
	check("/healthz", 500, "is not serving")
	check("/other", 404, "")
}

// Who kubelet has refused still serves what is mounted: not ready, and not to be
// killed for it.
func TestReadyCheck(t *testing.T) {
	var refused error
	type state struct {
		Err   error
		Since time.Time
	}
	s := newServer(t)
	h := s.Health(
		csiserver.ReadyCheck("registration", func(context.Context) error { return refused }),
		csiserver.DebugTable("state", func() []state { return []state{{}} }),
		csiserver.ReadyCheck("other", func(context.Context) error { return refused }))
	p := start(t, s, listen(t, dir(t)+"/csi.sock"))
	p.probe()
	check := func(path string, code int, text string) {
		t.Helper()
		if w := get(t, h, path); w.Code != code || !strings.Contains(w.Body.String(), text) {
			t.Errorf("%s: %d %q, want %d %q", path, w.Code, w.Body, code, text)
		}
	}
	check("/readyz", 200, "ok")
	check("/debug", 200, "\nready: 2\n  CHECK         READY  REASON\n  registration  true   -\n  other         true   -\n")
	check("/debug", 200, "\nstate: 1\n  ERR  SINCE\n  -    -\n")
	refused = errors.New("kubelet says: no")
	check("/readyz", 503, "registration: kubelet says: no\nother: kubelet says: no")
	check("/healthz", 200, "ok")
	check("/debug", 200, "  registration  false  kubelet says: no\n")
	check("/debug?format=json", 200, `{"check":"registration","ready":"false","reason":"kubelet says: no"}`)
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	check("/readyz", 503, "is not serving\nregistration: kubelet says: no")
}

type held struct {
	Key    stringer
	Op     struct{ RPC, RequestID string }
	Since  time.Time
	Parked bool
}

type stringer struct{ id string }

func (s stringer) String() string { return "volume " + s.id }

// A section may hold any type, and times that have not come.
func TestRowsOfInterfaces(t *testing.T) {
	type row struct {
		ID    string
		Since time.Time
	}
	h := newServer(t).Health(csiserver.DebugTable("things", func() []any { return []any{row{ID: "x"}, 7, nil} }),
		csiserver.DebugTable("rows", func() []row { return []row{{ID: "never"}} }))
	w := get(t, h, "/debug?format=json")
	var page struct{ Things, Rows []map[string]string }
	if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil || len(page.Things) != 3 || page.Things[1]["value"] != "7" {
		t.Errorf("%v: %s", err, w.Body)
	}
	if len(page.Rows) != 1 || page.Rows[0]["since"] != "" {
		t.Errorf("%v", page.Rows)
	}
	if text := get(t, h, "/debug").Body.String(); !strings.Contains(text, "never  -") {
		t.Error(text)
	}
}

func TestDebug(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	s := newServer(t, csiserver.WithNode(&node{publish: func(context.Context, *csi.NodePublishVolumeRequest) error {
		close(entered)
		<-release
		return nil
	}}))
	lock := held{Key: stringer{"vol-1\x1b[2J"}, Since: time.Now().Add(-90 * time.Second), Parked: true}
	lock.Op.RPC = "NodeStageVolume"
	h := s.Health(
		csiserver.DebugTable("locks", func() []held { return []held{lock} }),
		csiserver.DebugTable("names", func() []string { return nil }))
	p := start(t, s, listen(t, dir(t)+"/csi.sock"))
	done := make(chan error, 1)
	go func() {
		_, err := p.node().NodePublishVolume(context.Background(), publishRequest())
		done <- err
	}()
	<-entered

	w := get(t, h, "/debug")
	// Ages and IDs differ from run to run.
	text := regexp.MustCompile(`\d+m?s +waits +[0-9a-f]{8}-1`).ReplaceAllString(w.Body.String(), "AGE ID")
	text = regexp.MustCompile(`, 2.*Z\n`).ReplaceAllString(text, ", NOW\n")
	text = regexp.MustCompile(`AGE +CALLER +REQUEST_ID +`).ReplaceAllString(text, "AGE REQUEST_ID ")
	const want = `test.csikit.dev, NOW

calls: 1
  RPC                AGE REQUEST_ID ABOUT
  NodePublishVolume  AGE ID  volume_id=vol-1 target_path=/pods/1/mount

locks: 1
  KEY                    RPC              REQUEST_ID  SINCE  PARKED
  "volume vol-1\x1b[2J"  NodeStageVolume  -           1m30s  true

names: 0
`
	if text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}

	for _, w := range []*httptest.ResponseRecorder{get(t, h, "/debug?format=json"), get(t, h, "/debug", "Accept", "application/json")} {
		var page struct {
			Plugin       string
			Calls, Locks []map[string]string
			Names        []any
		}
		if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil {
			t.Fatal(err, w.Body)
		}
		if page.Plugin != "test.csikit.dev" || len(page.Calls) != 1 || page.Calls[0]["rpc"] != "NodePublishVolume" || page.Locks[0]["since"] != "1m30s" || page.Names == nil {
			t.Errorf("%s", w.Body)
		}
		for _, secret := range planted {
			if strings.Contains(w.Body.String(), secret) {
				t.Errorf("%s leaks: %s", secret, w.Body)
			}
		}
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
