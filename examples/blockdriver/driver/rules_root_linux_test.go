package driver

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/csitest"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/blockdriver/memory"
	"github.com/csikit/csikit/examples/blockdriver/storage"
)

// TestRules checks the driver with csitest.
func TestRules(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs")
	dir := t.TempDir()
	report, err := csitest.Check(t.Context(), csitest.Target{Endpoint: serveAll(t, dir, memory.New())}, csitest.Config{Dir: dir, Size: 64 << 20, CheckMounts: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range report.Results { // a SHOULD that fails is a failure here
		if x.Outcome == csitest.Failed || x.Outcome == csitest.Broken {
			t.Errorf("%s: %s\n%s%v", x.Rule.ID, x.Rule.Title, x.Reason, x.Failures)
		}
	}
	for _, left := range report.NotCleaned {
		t.Errorf("left behind: %s", left)
	}
	for _, x := range report.ResultsWith(csitest.NotRun) {
		t.Logf("%s was not run: %s", x.Rule.ID, x.Reason)
	}
	t.Logf("%d rules passed, %d do not apply, in %v", len(report.ResultsWith(csitest.Passed)), len(report.ResultsWith(csitest.DoesNotApply)), report.Took)
}

// serveAll serves the driver until the test ends and returns its endpoint.
func serveAll(t *testing.T, dir string, p storage.Provider, args ...string) (endpoint string) {
	t.Helper()
	endpoint = "unix://" + filepath.Join(dir, "csi.sock")
	args = append([]string{"-endpoint", endpoint, "-node-id", "node", "-max-volumes", "12"}, args...)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, p, args, func(string) string { return "" }, os.Stdout, testLog{t}) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return endpoint
}

// testLog sends the driver's log to the test's, and wants all responses valid.
type testLog struct{ t *testing.T }

var _ io.Writer = testLog{}

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s", p)
	if bytes.Contains(p, []byte("response breaks rules of CSI")) {
		l.t.Error("the driver broke the rules of CSI")
	}
	return len(p), nil
}
