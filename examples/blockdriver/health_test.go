package main

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
	dir, err := os.MkdirTemp("", "csikit")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, stop := context.WithCancel(t.Context())
	done, log := make(chan error, 1), &logText{}
	go func() {
		args := []string{"-endpoint", "unix://" + dir + "/csi.sock", "-pool", dir + "/pool", "-mode", "controller", "-http", "127.0.0.1:0"}
		done <- run(ctx, args, func(string) string { return "" }, io.Discard, log)
	}()
	serving := regexp.MustCompile(`"serving health" http=(\S+)`)
	for !serving.MatchString(log.String()) && len(done) == 0 {
		runtime.Gosched()
	}
	if len(done) > 0 {
		t.Fatal(<-done)
	}
	get := func(path string) string {
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
	if body := get("/readyz"); body != "ok" {
		t.Errorf("readyz: %s", body)
	}
	if page := get("/debug"); !strings.Contains(page, "calls: 0\n") || !strings.Contains(page, "locks: 0\n") {
		t.Errorf("debug: %s", page)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	http.DefaultClient.CloseIdleConnections()
}
