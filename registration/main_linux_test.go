package registration_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/registration"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const name = "test.csikit.dev"

func TestMain(m *testing.M) {
	gate.Main(m, gate.WithRole("driver", driverProcess))
}

// driverProcess is a driver with the arguments registration directory, CSI socket
// and node ID, and optionally a directory in which a write hangs.
func driverProcess() {
	if len(os.Args) > 4 {
		go os.Mkdir(filepath.Join(os.Args[4], "pod"), 0o700)
	}
	_ = os.Remove(os.Args[2])
	lis, err := net.Listen("unix", os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	gs := grpc.NewServer()
	d := &driver{nodeID: os.Args[3]}
	csi.RegisterIdentityServer(gs, d)
	csi.RegisterNodeServer(gs, d)
	go gs.Serve(lis)
	r, err := registration.New(registration.Config{DriverName: name, Endpoint: os.Args[2], KubeletEndpoint: os.Args[2], Dir: os.Args[1]})
	if err == nil {
		err = r.Serve(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func startProcess(t *testing.T, dir, nodeID string) (kill func()) {
	t.Helper()
	cmd := gate.RoleCommand(t.Context(), "driver", dir, filepath.Join(filepath.Dir(dir), nodeID+".sock"), nodeID)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() { killAndWait(cmd) }
}

func killAndWait(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// A driver is the CSI side.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	nodeID   string
	name     atomic.Value // of a string; the constant name if it is not set
	notReady atomic.Bool
	asked    atomic.Int64 // calls of NodeGetInfo
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	n, ok := d.name.Load().(string)
	if !ok {
		n = name
	}
	return &csi.GetPluginInfoResponse{Name: n, VendorVersion: "v1"}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(!d.notReady.Load())}, nil
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	d.asked.Add(1)
	return &csi.NodeGetInfoResponse{NodeId: d.nodeID}, nil
}

// serve starts the driver on a socket next to dir and returns the socket's path.
func (d *driver) serve(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(dir), d.nodeID+".sock")
	lis, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	gs := grpc.NewServer()
	csi.RegisterIdentityServer(gs, d)
	csi.RegisterNodeServer(gs, d)
	go gs.Serve(lis)
	t.Cleanup(gs.Stop)
	return path
}

// newDir returns a registration directory with a short path.
func newDir(t *testing.T) string {
	t.Helper()
	d, err := os.MkdirTemp("", "r")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(d) })
	dir := filepath.Join(d, "reg")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	return dir
}

// An instance is a Registrar that serves.
type instance struct {
	*registration.Registrar
	t    *testing.T
	stop context.CancelFunc
	done chan error
}

func newInstance(t *testing.T, c registration.Config) *instance {
	t.Helper()
	if c.DriverName == "" {
		c.DriverName = name
	}
	if c.KubeletEndpoint == "" {
		c.KubeletEndpoint = c.Endpoint
	}
	r, err := registration.New(c)
	if err != nil {
		t.Fatal(err)
	}
	r.SetIntervals(2*time.Millisecond, 10*time.Second)
	return &instance{Registrar: r, t: t}
}

func (i *instance) start() *instance {
	ctx, stop := context.WithCancel(context.Background())
	i.stop, i.done = stop, make(chan error, 1)
	go func() { i.done <- i.Serve(ctx) }()
	i.t.Cleanup(i.end)
	return i
}

// end ends Serve and waits for it.
func (i *instance) end() {
	i.t.Helper()
	i.stop()
	err := <-i.done
	i.done <- nil
	if err != nil {
		i.t.Error(err)
	}
}

// serveDriver is a driver and a Registrar, as one process would have them.
func serveDriver(t *testing.T, dir, nodeID string) *instance {
	t.Helper()
	d := &driver{nodeID: nodeID}
	return newInstance(t, registration.Config{Endpoint: d.serve(t, dir), Dir: dir}).start()
}

// await waits until ok, with a timeout that no correct test reaches.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out waiting for: %s", what)
		}
	}
}

func (i *instance) await(s registration.State) {
	i.t.Helper()
	defer func() {
		if i.t.Failed() {
			i.t.Logf("status %+v", i.Status())
		}
	}()
	await(i.t, s.String(), func() bool { return i.Status().State == s })
}

func (k *kubelet) await(nodeID string) {
	k.t.Helper()
	await(k.t, fmt.Sprintf("node ID %q in CSINode", nodeID), func() bool { return k.registered(name) == nodeID })
}

// threads returns the state of each thread of a process: D is an
// uninterruptible sleep.
func threads(t *testing.T, pid int) (states []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*/stat"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if b, err := os.ReadFile(path); err == nil {
			_, rest, _ := strings.Cut(string(b), ") ")
			states = append(states, rest[:1])
		}
	}
	return states
}
