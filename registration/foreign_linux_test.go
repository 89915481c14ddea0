package registration_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/registration"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// slowProbe is a driver whose Probe takes longer than a notice, and counts the calls.
type slowProbe struct {
	csi.UnimplementedIdentityServer
	probes  chan struct{}
	release chan struct{}
}

func (*slowProbe) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "slow.csikit.dev", VendorVersion: "v1"}, nil
}

func (s *slowProbe) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	s.probes <- struct{}{}
	<-s.release
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// startRegistrar serves a registrar until the test ends.
func startRegistrar(t *testing.T, c registration.Config) *registration.Registrar {
	t.Helper()
	r, err := registration.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

func serveOn(t *testing.T, path string, register func(*grpc.Server)) {
	t.Helper()
	lis, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	gs := grpc.NewServer()
	register(gs)
	go func() { _ = gs.Serve(lis) }()
	t.Cleanup(gs.Stop)
}

func awaitStatus(t *testing.T, r *registration.Registrar, what func(registration.Status) bool) registration.Status {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if s := r.Status(); what(s) {
			return s
		} else if time.Now().After(deadline) {
			t.Fatalf("the status remains %v: %v", s.State, s.Err)
		}
	}
}

// A Probe that takes longer than two seconds is waited for: there is never a second one
// beside it, and the driver registers.
func TestSlowProbe(t *testing.T) {
	d := t.TempDir()
	driver := &slowProbe{probes: make(chan struct{}, 100), release: make(chan struct{})}
	serveOn(t, filepath.Join(d, "csi.sock"), func(gs *grpc.Server) { csi.RegisterIdentityServer(gs, driver) })
	r := startRegistrar(t, registration.Config{
		DriverName: "slow.csikit.dev", Endpoint: filepath.Join(d, "csi.sock"), KubeletEndpoint: "/csi.sock", Dir: d,
	})
	awaitStatus(t, r, func(s registration.Status) bool {
		return s.Err != nil && strings.Contains(s.Err.Error(), "still waiting for Probe to return")
	})
	close(driver.release)
	awaitStatus(t, r, func(s registration.Status) bool { return s.State == registration.AwaitingKubelet })
	if n := len(driver.probes); n != 1 {
		t.Errorf("%d probes", n)
	}
}

// Any other gRPC server on the path of the registration socket is an error: a driver behind
// it would never be registered.
func TestForeignServerIsNoStandby(t *testing.T) {
	d := t.TempDir()
	driver := &slowProbe{probes: make(chan struct{}, 100), release: make(chan struct{})}
	close(driver.release)
	serveOn(t, filepath.Join(d, "csi.sock"), func(gs *grpc.Server) { csi.RegisterIdentityServer(gs, driver) })
	path := filepath.Join(d, "slow.csikit.dev-reg.sock")
	serveOn(t, path, func(*grpc.Server) {})
	r := startRegistrar(t, registration.Config{
		DriverName: "slow.csikit.dev", Endpoint: filepath.Join(d, "csi.sock"), KubeletEndpoint: "/csi.sock", Dir: d,
	})
	s := awaitStatus(t, r, func(s registration.Status) bool {
		return s.State == registration.Standby || s.State == registration.SocketError
	})
	if s.State != registration.SocketError || !strings.Contains(s.Err.Error(), "another program") || r.Check(t.Context()) == nil {
		t.Errorf("%v: %v", s.State, s.Err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

func TestNewRefusesNamesAndEndpoints(t *testing.T) {
	for _, c := range []registration.Config{
		{DriverName: "a..b", Endpoint: "/csi/csi.sock", KubeletEndpoint: "/k/csi.sock"},
		{DriverName: "a.-b", Endpoint: "/csi/csi.sock", KubeletEndpoint: "/k/csi.sock"},
		{DriverName: "a.b", Endpoint: "/registration/a.b-reg.sock", KubeletEndpoint: "/k/csi.sock"},
	} {
		var e *registration.Error
		if _, err := registration.New(c); !errors.As(err, &e) {
			t.Errorf("%s at %s: %v", c.DriverName, c.Endpoint, err)
		}
	}
}
