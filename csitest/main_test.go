package csitest

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path"
	"sync/atomic"
	"testing"

	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/refdriver"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// roles are those of some systems only.
var roles []gate.Option

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // many defects are waited for; the command line goes first
	gate.Main(m, append(roles, gate.WithRole("reference", referenceProcess))...)
}

// referenceProcess is the reference driver as a program: its arguments are the socket
// and, if it is to have a defect, the call at which it dies, or that it leaks; or that it
// opens what it keeps when it is busy.
func referenceProcess() {
	os.Remove(os.Args[1]) // of the one that was killed
	lis, err := net.Listen("unix", os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var leak []*os.File
	var created atomic.Int32
	dies := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if len(os.Args) > 2 && path.Base(info.FullMethod) == os.Args[2] {
			fmt.Fprintln(os.Stderr, "panic: at the disco")
			os.Exit(2)
		}
		if len(os.Args) > 2 && path.Base(info.FullMethod) == "CreateVolume" {
			opens := 0
			switch n := created.Add(1); {
			case os.Args[2] == "leak":
				opens = 1
			case os.Args[2] == "pool" && n == 4:
				opens = 20
			}
			for range opens {
				if f, err := os.Open(os.DevNull); err == nil {
					leak = append(leak, f)
				}
			}
		}
		return handler(ctx, req)
	}
	d := &refdriver.Driver{State: refdriver.NewState(), Validate: func(m proto.Message) error { return csispec.Validate(m) }}
	if err := d.Serve(context.Background(), lis, []grpc.UnaryServerInterceptor{dies}, nil); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
