package drivertest

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

	"github.com/csikit/csikit/examples/nfsdriver/driver"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
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

// ServeHealth serves the driver with its pages until the test ends. It returns its endpoint
// and a function that gets a page.
func ServeHealth(t *testing.T, p storage.Provider, args ...string) (endpoint string, get func(path string) string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "nfs")
	Must(t, err)
	endpoint = "unix://" + dir + "/csi.sock"
	done, log := make(chan error, 1), &logText{}
	ctx, stop := context.WithCancel(context.Background())
	args = append([]string{"-endpoint", endpoint, "-http", "127.0.0.1:0"}, args...)
	go func() { done <- driver.Run(ctx, p, args, func(string) string { return "" }, io.Discard, log) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		Must(t, os.RemoveAll(dir))
	})
	serving := regexp.MustCompile(`"serving health[^"]*" http=(\S+)`)
	for !serving.MatchString(log.String()) && len(done) == 0 {
		runtime.Gosched()
	}
	get = func(path string) string {
		resp, err := http.Get("http://" + serving.FindStringSubmatch(log.String())[1] + path)
		Must(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		Must(t, err)
		return string(body)
	}
	for get("/healthz") != "ok" { // or the test times out
		runtime.Gosched()
	}
	return endpoint, get
}
