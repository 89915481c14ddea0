package kubelet

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/registration"
	"google.golang.org/grpc"
)

func TestMain(m *testing.M) {
	// The tests mostly wait for kubelet.s loop, so that more of them than processors can run
	// in parallel. A flag on the command line overrides this.
	if err := flag.Set("test.parallel", "50"); err != nil {
		panic(err)
	}
	gate.Main(m, gate.WithRole("driver", func() {
		i, err := newInstance(os.Args[1], os.Args[2], os.Args[3])
		if err == nil {
			err = i.run(context.Background())
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}))
}

// An instance is a driver that registers itself: a pod of its DaemonSet.
type instance struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	*registration.Registrar
	nodeID   string
	endpoint string
	cfg      registration.Config
	limit    atomic.Int64
	topology atomic.Pointer[csi.Topology]
	ready    atomic.Bool
	info     func() // what NodeGetInfo does first

	stop context.CancelFunc
	done chan error
}

// newInstance returns an instance of driver that registers in dir as nodeID. Its
// CSI socket is next to dir.
func newInstance(dir, driver, nodeID string, change ...func(*registration.Config)) (*instance, error) {
	i := &instance{nodeID: nodeID, endpoint: filepath.Join(filepath.Dir(dir), driver+"-"+nodeID)}
	i.ready.Store(true)
	i.cfg = registration.Config{
		DriverName: driver, Endpoint: i.endpoint, KubeletEndpoint: i.endpoint, Dir: dir,
		Ready: func(context.Context) (bool, error) { return i.ready.Load(), nil },
	}
	for _, c := range change {
		c(&i.cfg)
	}
	var err error
	i.Registrar, err = registration.New(i.cfg)
	return i, err
}

func (i *instance) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.cfg.DriverName, VendorVersion: "v1"}, nil
}

func (i *instance) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (i *instance) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (i *instance) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	if i.info != nil {
		i.info()
	}
	return &csi.NodeGetInfoResponse{NodeId: i.nodeID, MaxVolumesPerNode: i.limit.Load(), AccessibleTopology: i.topology.Load()}, nil
}

// run serves CSI and the registration until ctx ends.
func (i *instance) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	registered := make(chan error, 1)
	go func() { registered <- i.Serve(ctx) }()
	err := i.serveCSI(ctx)
	stop()
	return errors.Join(err, <-registered)
}

func (i *instance) serveCSI(ctx context.Context) error {
	_ = os.Remove(i.endpoint) // of an instance that was killed
	lis, err := net.Listen("unix", i.endpoint)
	if err != nil {
		return err
	}
	gs := grpc.NewServer()
	csi.RegisterIdentityServer(gs, i)
	csi.RegisterNodeServer(gs, i)
	defer context.AfterFunc(ctx, gs.GracefulStop)()
	if err := gs.Serve(lis); ctx.Err() == nil {
		return err
	}
	return nil
}

func (i *instance) start(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	i.stop, i.done = stop, make(chan error, 1)
	go func() { i.done <- i.run(ctx) }()
	t.Cleanup(func() { i.end(t) })
}

func (i *instance) end(t *testing.T) {
	t.Helper()
	i.stop()
	err := <-i.done
	i.done <- nil
	if err != nil {
		t.Error(err)
	}
}

func (i *instance) await(t *testing.T, s registration.State) {
	t.Helper()
	await(t, fmt.Sprintf("%s to be %v", i.cfg.DriverName, s), func() bool { return i.Status().State == s })
}

// serve creates an instance and starts it.
func serve(t *testing.T, k *kubelet, driver, nodeID string, change ...func(*registration.Config)) *instance {
	t.Helper()
	i := prepare(t, k, driver, nodeID, change...)
	i.start(t)
	return i
}

func prepare(t *testing.T, k *kubelet, driver, nodeID string, change ...func(*registration.Config)) *instance {
	t.Helper()
	i, err := newInstance(k.dir, driver, nodeID, change...)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// serveProcess starts an instance in a separate process, and returns a function that kills
// it.
func serveProcess(t *testing.T, k *kubelet, driver, nodeID string) (kill func()) {
	t.Helper()
	cmd := gate.RoleCommand(context.Background(), "driver", k.dir, driver, nodeID)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(kill)
	return kill
}
