package csitest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/internal/refdriver"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// because maps rules that find a defect for one reason to it.
func because(why string, rules ...string) map[string]string {
	all := map[string]string{}
	for _, id := range rules {
		all[id] = why
	}
	return all
}

// A defect makes the reference driver break one rule.
type defect struct {
	breaks string            // the rule
	does   string            // in words
	also   map[string]string // other rules that cannot but find it, and why
	// mayAlso are rules that find it if their calls happen to come in some order, and why.
	mayAlso map[string]string
	leaves  string // why not everything may be cleaned up; empty: everything is
	// unary and stream are around every call, before the driver validates it.
	unary  grpc.UnaryServerInterceptor
	stream grpc.StreamServerInterceptor
	// controller is around calls of a second endpoint, which there is only then.
	controller grpc.UnaryServerInterceptor
	forgets    func(*refdriver.State) // what a restart loses
	kernel     bool                   // the rule checks mounts: the driver creates some
	root       bool                   // a user namespace does not do for it
	copied     func(from, to string)  // does it to every copy of data, by directories
	log        func(method string, req proto.Message) string
	rules      []string // that are needed beside a sample
	// directories of one file system are what is mounted.
	directories bool
	namedIDs    bool // follow from names
	noStaging   bool
	plain       bool // raw block volumes are files, which the rule checks; no other rule can
	only        bool // and no sample: the defect makes calls wait
	alone       bool // no other rule is run: most would find it
}

// reference serves the reference driver, with the defect, as a target.
func reference(t *testing.T, d defect) (Target, Config) {
	t.Helper()
	dir, err := os.MkdirTemp("", "ref") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.kernel {
			for _, m := range slices.Backward(mounts(dir)) { // what a defect left
				refdriver.Unbind(m.point)
			}
		}
		os.RemoveAll(dir)
	})
	log := filepath.Join(dir, "log")
	target := Target{Endpoint: "unix://" + filepath.Join(dir, "csi.sock"), SecondNode: refdriver.SecondNode, SecondTopology: refdriver.SecondTopology(), Log: log}
	cfg := Config{listTimeout: 200 * time.Millisecond, Dir: dir, Size: 64 << 20, CheckMounts: d.kernel || d.plain, MutableParameters: map[string]string{"iops": "100", "throughput": "200"}, Secrets: map[string]string{"password": "right"}}
	if d.breaks != "" { // it may keep the rules from cleaning up
		cfg.CleanupTimeout = 5 * time.Second
	}

	state := refdriver.NewState()
	note := func(text string) {
		f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			f.WriteString(text)
			f.Close()
		}
	}
	start := func(socket string, unary grpc.UnaryServerInterceptor) (stop func()) {
		ref := &refdriver.Driver{State: state, NamedIDs: d.namedIDs, NoStaging: d.noStaging, Log: note, Validate: func(m proto.Message) error { return csispec.Validate(m) }}
		if d.kernel {
			ref.Dir, ref.Directories = filepath.Join(dir, "volumes"), d.directories
			os.MkdirAll(ref.Dir, 0o750)
			if d.copied != nil {
				ref.Copied = func(from, to string) { d.copied(filepath.Join(ref.Dir, from), filepath.Join(ref.Dir, to)) }
			}
		}
		lis, err := net.Listen("unix", filepath.Join(dir, socket))
		if err != nil {
			t.Error(err)
			return func() {}
		}
		var unaries []grpc.UnaryServerInterceptor
		if unary != nil {
			unaries = append(unaries, unary)
		}
		if d.log != nil {
			unaries = append(unaries, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				note(d.log(info.FullMethod, req.(proto.Message)))
				return handler(ctx, req)
			})
		}
		var streams []grpc.StreamServerInterceptor
		if d.stream != nil {
			streams = append(streams, d.stream)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := ref.Serve(ctx, lis, unaries, streams); err != nil {
				t.Error(err)
			}
		}()
		return func() { cancel(); <-done }
	}
	target.Inventory = state.Inventory
	note("")
	stop := start("csi.sock", d.unary)
	t.Cleanup(func() { stop() })
	target.Restart = func(context.Context) error {
		stop()
		if d.forgets != nil {
			d.forgets(state)
		}
		stop = start("csi.sock", d.unary)
		return nil
	}
	if d.controller != nil {
		target.ControllerEndpoint, target.Restart = "unix://"+filepath.Join(dir, "ctl.sock"), nil
		t.Cleanup(start("ctl.sock", d.controller))
	}
	return target, cfg
}

// A pointer to a message.
type message[T any] interface {
	*T
	proto.Message
}

// before changes requests of one type.
func before[T any, M message[T]](change func(M)) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if m, ok := req.(M); ok {
			change(m)
		}
		return handler(ctx, req)
	}
}

// after changes responses of one type.
func after[T any, M message[T]](change func(M)) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		if m, ok := resp.(M); ok && err == nil {
			m = proto.CloneOf(m)
			change(m)
			return m, nil
		}
		return resp, err
	}
}

// fails changes errors of requests of one type.
func fails[T any, M message[T]](change func(M, error) error) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		if m, ok := req.(M); ok && err != nil {
			err = change(m, err)
		}
		return resp, err
	}
}

// instead answers requests of one type itself, if it returns a response or an error.
func instead[T any, M message[T]](answer func(M) (proto.Message, error)) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if m, ok := req.(M); ok {
			if resp, err := answer(m); resp != nil || err != nil {
				return resp, err
			}
		}
		return handler(ctx, req)
	}
}

// volumeChanged changes the volume of CreateVolume's answers.
func volumeChanged(change func(*csi.Volume)) grpc.UnaryServerInterceptor {
	return after(func(r *csi.CreateVolumeResponse) { change(r.Volume) })
}
