// Package drivertest runs the driver with a storage, for the tests of both.
package drivertest

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/examples/nfsdriver/driver"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
)

// Serve serves the driver in this process until the test ends, and returns its endpoint.
func Serve(t *testing.T, p storage.Provider, args ...string) (endpoint string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "nfs")
	Must(t, err)
	endpoint = "unix://" + filepath.Join(dir, "csi.sock")
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	args = append([]string{"-endpoint", endpoint, "-node-id", "node", "-log-level", "debug"}, args...)
	go func() { done <- driver.Run(ctx, p, args, func(string) string { return "" }, os.Stdout, Log{t}) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		Must(t, os.RemoveAll(dir))
	})
	return endpoint
}

// Log writes the driver's log to the test's, and expects all responses to be valid.
type Log struct{ T *testing.T }

func (l Log) Write(p []byte) (int, error) {
	l.T.Logf("%s", p)
	if bytes.Contains(p, []byte("response breaks rules of CSI")) {
		l.T.Error("the driver broke the rules of CSI")
	}
	return len(p), nil
}

// Must ends the test if err is not nil.
func Must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
