package driver

import (
	"context"
	"io"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csikit/csikit/examples/blockdriver/memory"
)

// logText is a log that can be read while it is written.
type logText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestHealth(t *testing.T) {
	get := health(t, "-mode", "controller")
	if body := get("/readyz"); body != "ok" {
		t.Errorf("readyz: %s", body)
	}
	if page := get("/debug"); !strings.Contains(page, "calls: 0\n") || !strings.Contains(page, "locks: 0\n") {
		t.Errorf("debug: %s", page)
	}
}

// A node plugin that no kubelet has registered is not ready, and yet is not to be
// killed. How it stands is on the page.
func TestHealthBeforeRegistration(t *testing.T) {
	registry := t.TempDir()
	get := health(t, "-mode", "node", "-node-id", "node", "-register", "/kubelet/csi.sock", "-registration-dir", registry)
	const text = "registration: not registered with kubelet (awaiting_kubelet): kubelet has not registered the driver yet"
	late := time.After(time.Minute)
	for body := get("/readyz"); body != text; body = get("/readyz") {
		select {
		case <-late:
			t.Fatalf("readyz: %s, want %s", body, text)
		default:
		}
		if !strings.Contains(body, "registration: not registered with kubelet (") {
			t.Fatalf("readyz: %s", body)
		}
		runtime.Gosched()
	}
	if body := get("/healthz"); body != "ok" {
		t.Errorf("healthz: %s", body)
	}
	if page := get("/debug"); !strings.Contains(page, "registration  false") || !strings.Contains(page, registry+"/"+defaultName+"-reg.sock") {
		t.Errorf("debug: %s", page)
	}
}

// health runs the driver until the end of the test and returns what gets a page of it
// once it is healthy.
func health(t *testing.T, args ...string) (get func(path string) string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "csikit")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ctx, stop := context.WithCancel(context.Background())
	done, log := make(chan error, 1), &logText{}
	go func() {
		args := append(args, "-endpoint", "unix://"+dir+"/csi.sock", "-http", "127.0.0.1:0")
		done <- Run(ctx, memory.New(), args, func(string) string { return "" }, io.Discard, log)
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	serving := regexp.MustCompile(`"serving health" http=(\S+)`)
	for !serving.MatchString(log.String()) {
		select {
		case err := <-done:
			done <- nil
			t.Fatal(err)
		default:
			runtime.Gosched()
		}
	}
	get = func(path string) string {
		t.Helper()
		resp, err := http.Get("http://" + serving.FindStringSubmatch(log.String())[1] + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	for get("/healthz") != "ok" { // or the test times out
		runtime.Gosched()
	}
	return get
}
