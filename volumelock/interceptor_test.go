package volumelock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/csikit/csikit/volumelock"
)

// pendingError is the error of a driver whose work is still in flight.
type pendingError struct{ pending chan struct{} }

func (e *pendingError) Error() string            { return "still unmounting" }
func (e *pendingError) Pending() <-chan struct{} { return e.pending }

func stageRequest() *csi.NodeStageVolumeRequest {
	return &csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: "/s"}
}

// invoke runs one call through the interceptor.
func invoke(ctx context.Context, i grpc.UnaryServerInterceptor, method string, req any, handler func() error) error {
	_, err := i(ctx, req, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) {
		return nil, handler()
	})
	return err
}

func ok() error { return nil }

func TestInterceptorHoldsKeysDuringTheCall(t *testing.T) {
	var table volumelock.Table
	type idKey struct{}
	i := volumelock.Interceptor(&table, volumelock.WithRequestID(func(ctx context.Context) string {
		id, _ := ctx.Value(idKey{}).(string)
		return id
	})).Unary
	ctx := context.WithValue(t.Context(), idKey{}, "r1")
	cause := errors.New("cause")
	err := invoke(ctx, i, csi.Node_NodeStageVolume_FullMethodName, stageRequest(), func() error {
		err := invoke(t.Context(), i, csi.Node_NodeUnstageVolume_FullMethodName, &csi.NodeUnstageVolumeRequest{VolumeId: "v"}, func() error {
			t.Error("the refused handler ran")
			return nil
		})
		var busy *volumelock.BusyError
		if !errors.As(err, &busy) || busy.RPC != "NodeUnstageVolume" || busy.Holder != (volumelock.Op{RPC: "NodeStageVolume", RequestID: "r1"}) {
			t.Errorf("second call: %v, want it refused, naming the first", err)
		}
		if status.Code(err) != codes.Aborted {
			t.Errorf("code = %v, want ABORTED", status.Code(err))
		}
		return cause
	})
	if err != cause {
		t.Errorf("err = %v, want the handler's", err)
	}
	mustBeIdle(t, &table)
}

func TestInterceptorReadsPass(t *testing.T) {
	var table volumelock.Table
	i := volumelock.Interceptor(&table).Unary
	ran := false
	err := invoke(t.Context(), i, csi.Node_NodeStageVolume_FullMethodName, stageRequest(), func() error {
		return invoke(t.Context(), i, csi.Node_NodeGetVolumeStats_FullMethodName, &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "/s"}, func() error {
			ran = true
			return nil
		})
	})
	if err != nil || !ran {
		t.Errorf("stats during a stage: %v, ran %v", err, ran)
	}
}

func TestInterceptorPolicyAndNilOptions(t *testing.T) {
	var table volumelock.Table
	i := volumelock.Interceptor(&table, volumelock.WithPolicy(func(method string, req any) []volumelock.Request {
		return []volumelock.Request{ex(volumelock.KindVolume, method)}
	}), volumelock.WithPolicy(nil), volumelock.WithRequestID(nil), volumelock.WithWait(0)).Unary
	err := invoke(t.Context(), i, "/vendor.v1.S/M", nil, func() error {
		if got, want := held(&table), `volume "/vendor.v1.S/M" exclusive M`; got != want {
			t.Errorf("held %s, want %s", got, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestInterceptorPanicReleases(t *testing.T) {
	var table volumelock.Table
	i := volumelock.Interceptor(&table).Unary
	func() {
		defer func() {
			if recover() != "boom" {
				t.Error("the panic did not come through")
			}
		}()
		_ = invoke(t.Context(), i, csi.Node_NodeStageVolume_FullMethodName, stageRequest(), func() error { panic("boom") })
	}()
	mustBeIdle(t, &table)
}

// kubernetes-sigs/aws-fsx-csi-driver#495: umount(2) did not return, and all later
// calls were refused for 44 days. Teardown passes parked keys.
func TestInterceptorParks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table volumelock.Table
		i := volumelock.Interceptor(&table).Unary
		hung := &pendingError{make(chan struct{})}
		stageHangs := func() error {
			return invoke(t.Context(), i, csi.Node_NodeStageVolume_FullMethodName, stageRequest(), func() error {
				return fmt.Errorf("stage: %w", hung)
			})
		}
		for range 3 { // the retries join, and hang as well
			if err := stageHangs(); !errors.Is(err, hung) {
				t.Fatalf("stage = %v, want the handler's error", err)
			}
		}
		if got, want := held(&table), `volume_on_node "v" exclusive NodeStageVolume parked`; got != want {
			t.Errorf("held %s, want %s", got, want)
		}

		publish := func() error {
			return invoke(t.Context(), i, csi.Node_NodePublishVolume_FullMethodName,
				&csi.NodePublishVolumeRequest{VolumeId: "v", TargetPath: "/t"}, ok)
		}
		expand := func() error {
			return invoke(t.Context(), i, csi.Node_NodeExpandVolume_FullMethodName, &csi.NodeExpandVolumeRequest{VolumeId: "v"}, ok)
		}
		for name, call := range map[string]func() error{"publish": publish, "expand": expand} {
			err := call()
			if status.Code(err) != codes.Aborted || !strings.Contains(err.Error(), "held by NodeStageVolume for 0s: that call has returned") {
				t.Errorf("%s = %v, want ABORTED naming the parked stage", name, err)
			}
		}
		if err := invoke(t.Context(), i, csi.Node_NodeUnpublishVolume_FullMethodName,
			&csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: "/t"}, ok); err != nil {
			t.Errorf("unpublish = %v, want it to pass", err)
		}
		if err := invoke(t.Context(), i, csi.Node_NodeUnstageVolume_FullMethodName,
			&csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: "/s"}, ok); err != nil {
			t.Errorf("unstage = %v, want it to pass", err)
		}

		close(hung.pending)
		synctest.Wait()
		mustBeIdle(t, &table)
		if err := publish(); err != nil {
			t.Errorf("publish after the end = %v", err)
		}
	})
}

// An error type may have a Pending method and nothing pending.
func TestInterceptorNothingPending(t *testing.T) {
	var table volumelock.Table
	i := volumelock.Interceptor(&table).Unary
	err := invoke(t.Context(), i, csi.Node_NodeStageVolume_FullMethodName, stageRequest(), func() error { return &pendingError{} })
	if err == nil {
		t.Error("the error was lost")
	}
	mustBeIdle(t, &table)
}

// A cleanup after a call that hangs may hang as well: the keys are free when all of
// it has ended.
func TestInterceptorParksForAllThatIsPending(t *testing.T) {
	never := func() *pendingError { return &pendingError{} } // nothing is pending
	for name, join := range map[string]func(a, b error) error{
		"joined":              func(a, b error) error { return errors.Join(a, b) },
		"joined and wrapped":  func(a, b error) error { return fmt.Errorf("stage: %w", errors.Join(never(), a, b)) },
		"two verbs":           func(a, b error) error { return fmt.Errorf("%w; and cleaning up: %w", a, b) },
		"one wraps the other": func(a, b error) error { return &outerError{a.(*pendingError), b} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var table volumelock.Table
				i := volumelock.Interceptor(&table).Unary
				a, b := &pendingError{make(chan struct{})}, &pendingError{make(chan struct{})}
				call := func() error {
					return invoke(t.Context(), i, csi.Node_NodeStageVolume_FullMethodName, stageRequest(), func() error { return join(a, b) })
				}
				for range 3 {
					if err := call(); !errors.Is(err, b) {
						t.Fatal(err)
					}
				}
				const parked = `volume_on_node "v" exclusive NodeStageVolume parked`
				if got := held(&table); got != parked {
					t.Errorf("held %s, want it once", got)
				}
				close(a.pending)
				synctest.Wait()
				if got := held(&table); got != parked {
					t.Errorf("held %q while the second one hangs", got)
				}
				if err := call(); !errors.Is(err, b) { // the retry finds one of them over
					t.Fatal(err)
				}
				if got := held(&table); got != parked {
					t.Errorf("held %s, want it once", got)
				}
				close(b.pending)
				synctest.Wait()
				mustBeIdle(t, &table)
			})
		})
	}
}

// outerError is pending, and so is what it wraps.
type outerError struct {
	*pendingError
	cause error
}

func (e *outerError) Unwrap() error { return e.cause }

func TestInterceptorWait(t *testing.T) {
	const limit = 10 * time.Second
	call := func(ctx context.Context, table *volumelock.Table, method string, req any) (time.Duration, error) {
		i := volumelock.Interceptor(table, volumelock.WithWait(limit)).Unary
		began := time.Now()
		err := invoke(ctx, i, method, req, ok)
		return time.Since(began), err
	}
	volume := ex(volumelock.KindVolumeOnNode, "v")
	unstageRequest := &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: "/s"}
	tests := []struct {
		name   string
		method string
		req    any
		during func(h volumelock.Held, cancel func(), pending <-chan struct{}) // while the call waits
		took   time.Duration
		busy   bool
	}{
		{"released in time", csi.Node_NodeStageVolume_FullMethodName, stageRequest(), func(h volumelock.Held, _ func(), _ <-chan struct{}) {
			time.Sleep(3 * time.Second)
			h.Release()
		}, 3 * time.Second, false},
		{"not released", csi.Node_NodeStageVolume_FullMethodName, stageRequest(), func(h volumelock.Held, _ func(), _ <-chan struct{}) {
			time.Sleep(limit + time.Second)
			h.Release()
		}, limit, true},
		{"the caller cancels", csi.Node_NodeStageVolume_FullMethodName, stageRequest(), func(_ volumelock.Held, cancel func(), _ <-chan struct{}) {
			time.Sleep(2 * time.Second)
			cancel()
		}, 2 * time.Second, true},
		{"parked meanwhile", csi.Node_NodeStageVolume_FullMethodName, stageRequest(), func(h volumelock.Held, _ func(), pending <-chan struct{}) {
			time.Sleep(time.Second)
			h.Park(pending)
		}, time.Second, true},
		{"parked meanwhile, and passed", csi.Node_NodeUnstageVolume_FullMethodName, unstageRequest, func(h volumelock.Held, _ func(), pending <-chan struct{}) {
			time.Sleep(time.Second)
			h.Park(pending)
		}, time.Second, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var table volumelock.Table
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				pending := make(chan struct{})
				defer close(pending)
				h := mustAcquire(t, &table, volumelock.Op{RPC: "NodeExpandVolume"}, volume)
				var during sync.WaitGroup
				during.Go(func() { tt.during(h, cancel, pending) })
				took, err := call(ctx, &table, tt.method, tt.req)
				if took != tt.took {
					t.Errorf("took %v, want %v", took, tt.took)
				}
				var busy *volumelock.BusyError
				if errors.As(err, &busy) != tt.busy {
					t.Errorf("err = %v, want busy %v", err, tt.busy)
				}
				during.Wait()
			})
		})
	}
	t.Run("free", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var table volumelock.Table
			if took, err := call(t.Context(), &table, csi.Node_NodeStageVolume_FullMethodName, stageRequest()); took != 0 || err != nil {
				t.Errorf("took %v, %v, want no wait", took, err)
			}
		})
	})
	t.Run("many wait, one after the other", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var table volumelock.Table
			i := volumelock.Interceptor(&table, volumelock.WithWait(time.Minute)).Unary
			var calls sync.WaitGroup
			began := time.Now()
			for range 20 {
				calls.Go(func() {
					if err := invoke(t.Context(), i, csi.Node_NodeStageVolume_FullMethodName, stageRequest(), func() error {
						time.Sleep(time.Second)
						return nil
					}); err != nil {
						t.Error(err)
					}
				})
			}
			calls.Wait()
			if took := time.Since(began); took != 20*time.Second {
				t.Errorf("20 calls of a second took %v", took)
			}
			mustBeIdle(t, &table)
		})
	})
}

// kubernetes-csi/csi-driver-nfs#200, kubernetes-sigs/aws-fsx-openzfs-csi-driver#95: a lock
// on the volume refused the pods of a shared one without end. Here 200 of them come and
// go at the same time. With a lock per volume nearly all of them are refused.
func TestInterceptorManyPods(t *testing.T) {
	const pods = 200
	perVolume := func(_ string, req any) []volumelock.Request {
		return []volumelock.Request{ex(volumelock.KindVolume, req.(interface{ GetVolumeId() string }).GetVolumeId())}
	}
	tests := []struct {
		name            string
		policy          volumelock.Policy
		mode            csi.VolumeCapability_AccessMode_Mode
		publish, remove int // handlers that run concurrently
	}{
		{"many writers", volumelock.DefaultPolicy, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, pods, pods},
		{"single writer", volumelock.DefaultPolicy, csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, 1, pods},
		{"a lock per volume", perVolume, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, 1, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var table volumelock.Table
				i := volumelock.Interceptor(&table, volumelock.WithPolicy(tt.policy)).Unary
				run := func(method string, req func(target string) any) (inside, aborted int) {
					var mu sync.Mutex
					var calls sync.WaitGroup
					leave := make(chan struct{})
					for pod := range pods {
						calls.Go(func() {
							err := invoke(t.Context(), i, method, req(fmt.Sprint("/pods/", pod)), func() error {
								mu.Lock()
								inside++
								mu.Unlock()
								<-leave
								return nil
							})
							if status.Code(err) == codes.Aborted {
								mu.Lock()
								aborted++
								mu.Unlock()
							} else if err != nil {
								t.Error(err)
							}
						})
					}
					synctest.Wait() // all are inside the handler or refused
					close(leave)
					calls.Wait()
					return inside, aborted
				}
				inside, aborted := run(csi.Node_NodePublishVolume_FullMethodName, func(target string) any {
					return &csi.NodePublishVolumeRequest{VolumeId: "v", TargetPath: target, VolumeCapability: capability(tt.mode)}
				})
				if inside != tt.publish || aborted != pods-tt.publish {
					t.Errorf("publish: %d concurrent and %d aborted, want %d and %d", inside, aborted, tt.publish, pods-tt.publish)
				}
				inside, aborted = run(csi.Node_NodeUnpublishVolume_FullMethodName, func(target string) any {
					return &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target}
				})
				if inside != tt.remove || aborted != pods-tt.remove {
					t.Errorf("unpublish: %d concurrent and %d aborted, want %d and %d", inside, aborted, tt.remove, pods-tt.remove)
				}
				mustBeIdle(t, &table)
			})
		})
	}
}

// driver hangs in NodeStageVolume and in GetMetadataAllocated until it is released.
type driver struct {
	csi.UnimplementedNodeServer
	csi.UnimplementedSnapshotMetadataServer
	entered, release chan struct{}
	err              error
}

func (d *driver) NodeStageVolume(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	d.entered <- struct{}{}
	<-d.release
	return &csi.NodeStageVolumeResponse{}, d.err
}

func (d *driver) GetMetadataAllocated(_ *csi.GetMetadataAllocatedRequest, s csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	d.entered <- struct{}{}
	<-d.release
	return errors.Join(d.err, s.Send(&csi.GetMetadataAllocatedResponse{}))
}

// serve returns a driver behind the interceptors, and a connection to it.
func serve(t *testing.T, table *volumelock.Table, opts ...volumelock.Option) (*driver, *grpc.ClientConn) {
	t.Helper()
	lis, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	d := &driver{entered: make(chan struct{}), release: make(chan struct{})}
	locks := volumelock.Interceptor(table, opts...)
	server := grpc.NewServer(
		grpc.UnaryInterceptor(locks.Unary), grpc.StreamInterceptor(locks.Stream))
	csi.RegisterNodeServer(server, d)
	csi.RegisterSnapshotMetadataServer(server, d)
	var background sync.WaitGroup
	background.Go(func() { _ = server.Serve(lis) })
	conn, err := grpc.NewClient("unix:"+lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		background.Wait()
	})
	return d, conn
}

// Over a real server: what the CO sees.
func TestInterceptorOverGRPC(t *testing.T) {
	var table volumelock.Table
	d, conn := serve(t, &table)
	client := csi.NewNodeClient(conn)

	var first error
	var stage sync.WaitGroup
	stage.Go(func() { _, first = client.NodeStageVolume(t.Context(), stageRequest()) })
	<-d.entered
	_, err := client.NodeStageVolume(t.Context(), stageRequest())
	s := status.Convert(err)
	if s.Code() != codes.Aborted || !strings.Contains(s.Message(), `volume_on_node "v" is held by NodeStageVolume for`) || len(s.Details()) != 0 {
		t.Errorf("second call: %v, want ABORTED naming the holder, no details", err)
	}
	close(d.release)
	stage.Wait()
	if first != nil {
		t.Errorf("first call: %v", first)
	}
	mustBeIdle(t, &table)
}

// kubelet drops a call after two minutes and sends the next one. What the first one
// does is not over by that.
func TestInterceptorHoldsAfterTheCallerHasGone(t *testing.T) {
	var table volumelock.Table
	d, conn := serve(t, &table)
	client := csi.NewNodeClient(conn)
	ctx, cancel := context.WithCancel(t.Context())
	var stage sync.WaitGroup
	stage.Go(func() {
		if _, err := client.NodeStageVolume(ctx, stageRequest()); status.Code(err) != codes.Canceled {
			t.Errorf("the call that was given up: %v", err)
		}
	})
	<-d.entered
	cancel()
	stage.Wait() // the caller has gone, and the handler runs on
	if _, err := client.NodeStageVolume(t.Context(), stageRequest()); status.Code(err) != codes.Aborted {
		t.Errorf("the retry: %v, want ABORTED", err)
	}
	close(d.release)
	for len(table.Snapshot()) > 0 {
		runtime.Gosched() // until the handler has returned
	}
	go func() { <-d.entered }()
	if _, err := client.NodeStageVolume(t.Context(), stageRequest()); err != nil {
		t.Errorf("the retry after the end: %v", err)
	}
}

// Of a stream the policy sees the request, and its keys are held to the end.
func TestStreamInterceptor(t *testing.T) {
	reading := func(method string, req any) []volumelock.Request {
		if r, ok := req.(*csi.GetMetadataAllocatedRequest); ok {
			return []volumelock.Request{ex(volumelock.KindSnapshot, r.GetSnapshotId())}
		}
		return volumelock.DefaultPolicy(method, req)
	}
	pending := &pendingError{make(chan struct{})}
	for _, tt := range []struct {
		name   string
		policy volumelock.Policy
		err    error
		held   string
		after  string
	}{
		{"the policy's keys", reading, nil, `snapshot "s" exclusive GetMetadataAllocated`, ""},
		{"parked", reading, pending, `snapshot "s" exclusive GetMetadataAllocated`, `snapshot "s" exclusive GetMetadataAllocated parked`},
		{"no keys", nil, nil, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var table volumelock.Table
			d, conn := serve(t, &table, volumelock.WithPolicy(tt.policy))
			d.err = tt.err
			read := func() error {
				s, err := csi.NewSnapshotMetadataClient(conn).GetMetadataAllocated(t.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: "s"})
				if err == nil {
					_, err = s.Recv()
				}
				for err == nil {
					_, err = s.Recv()
				}
				return err
			}
			var stream sync.WaitGroup
			stream.Go(func() { _ = read() })
			<-d.entered
			if got := held(&table); got != tt.held {
				t.Errorf("held %q, want %q", got, tt.held)
			}
			if tt.held != "" {
				if err := read(); status.Code(err) != codes.Aborted || !strings.Contains(err.Error(), "is held by GetMetadataAllocated") {
					t.Errorf("a second one: %v, want ABORTED naming the first", err)
				}
			}
			close(d.release)
			stream.Wait()
			for tt.after != held(&table) {
				runtime.Gosched() // until the handler has returned
			}
		})
	}
	close(pending.pending)
}

func TestInterceptorWithoutTable(t *testing.T) {
	_, err := volumelock.Interceptor(nil).Unary(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: "/s"},
		&grpc.UnaryServerInfo{FullMethod: "/csi.v1.Node/NodeStageVolume"}, func(context.Context, any) (any, error) { return nil, nil })
	if err != nil {
		t.Error(err)
	}
}
