package csitest_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/csitest"
	"github.com/csikit/csikit/internal/refdriver"
	"google.golang.org/protobuf/proto"
)

// A driver's own test: all rules, each a subtest. Those that want root and the
// driver's mounts need Kernel, those that kill it need Start.
func ExampleRun() {
	test := func(t *testing.T) {
		csitest.Run(t, csitest.Target{
			Endpoint: "unix:///tmp/csi.sock",
			Start:    func() *exec.Cmd { return exec.Command("./driver", "-endpoint", "unix:///tmp/csi.sock") },
		}, csitest.Config{Kernel: os.Geteuid() == 0})
	}
	_ = test
}

// A driver that runs already, a part of the rules, and a verdict in a few lines.
func ExampleCheck() {
	endpoint, stop := serveDriver()
	defer stop()
	report, err := csitest.Check(context.Background(), csitest.Target{Endpoint: endpoint}, csitest.Config{
		Rules: []string{"controller.delete.", "restart."},
		Size:  64 << 20,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, x := range report.With(csitest.Failed) {
		fmt.Println(x.Rule.Level, x.Rule.ID, x.Failures)
	}
	missing := map[string]bool{}
	for _, x := range report.With(csitest.NotRun) {
		missing[x.Flag] = true
	}
	fmt.Println("ok:", report.OK(), "some need", missing)
	// Output: ok: true some need map[-start or -restart:true]
}

// serveDriver serves a driver that keeps everything in memory.
func serveDriver() (endpoint string, stop func()) {
	dir, err := os.MkdirTemp("", "ex")
	if err != nil {
		panic(err)
	}
	lis, err := net.Listen("unix", filepath.Join(dir, "csi.sock"))
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	driver := &refdriver.Driver{State: refdriver.NewState(), Validate: func(m proto.Message) error { return csispec.Validate(m) }}
	go func() { done <- driver.Serve(ctx, lis, nil, nil) }()
	return "unix://" + lis.Addr().String(), func() {
		cancel()
		if err := <-done; err != nil {
			fmt.Println(err)
		}
		os.RemoveAll(dir)
	}
}
