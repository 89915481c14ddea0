package driver

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) { gate.Main(m) }

// serveMode serves the driver until the test ends and returns its endpoint.
func serveMode(t *testing.T, dir string, p storage.Provider, args ...string) (endpoint string) {
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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantCode checks the code of an error and what its text names.
func wantCode(t *testing.T, err error, code codes.Code, texts ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Fatalf("got %v (%v), want code %v", err, status.Code(err), code)
	}
	for _, text := range texts {
		if err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
}

func dial(t *testing.T, path string) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
