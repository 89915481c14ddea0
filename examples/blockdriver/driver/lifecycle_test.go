package driver

import (
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/examples/blockdriver/memory"
	"google.golang.org/grpc"
)

// What is wrong with the settings stops the start, and the hook; outside a pod there is no API
// server. Without the flag the driver needs none.
func TestLifecycle(t *testing.T) {
	const serve = "-endpoint unix:///s.sock -node-id n1 "
	for _, test := range []struct{ args, host, want string }{
		{serve + "-mode node -startup-taint a/b", "", "KUBERNETES_SERVICE_HOST"},
		{serve + "-mode controller -startup-taint a/b", "10.0.0.1", "-startup-taint is for the node plugin"},
		{"pre-stop -node-id n1", "", "KUBERNETES_SERVICE_HOST"},
		{"pre-stop", "10.0.0.1", "NodeName"},
		{"pre-stop -h", "", "want blockdriver pre-stop"},
		{"pre-stop now", "", "want blockdriver pre-stop"},
		{"pre-stop -timeout soon", "", "timeout"},
		{"pre-stop -node-id n1 -timeout 1ms", "127.0.0.1", "wait for detach nodes/n1: context deadline exceeded"},
	} {
		t.Run(test.args, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", test.host)
			t.Setenv("KUBERNETES_SERVICE_PORT", "1")
			err := Run(t.Context(), memory.New(), strings.Fields(test.args), func(string) string { return "" }, io.Discard, testLog{t})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// The driver serves while the API server cannot be reached, and stops without waiting for it.
func TestStartupTaintWithoutAPIServer(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "1")
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	sock := filepath.Join(t.TempDir(), "s")
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, memory.New(), []string{"-endpoint", "unix://" + sock, "-node-id", "n1", "-mode", "node", "-startup-taint", "a/b"},
			func(string) string { return "" }, io.Discard, testLog{t})
	}()
	if _, err := csi.NewIdentityClient(dial(t, sock)).Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
