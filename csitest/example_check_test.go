package csitest_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest"
	"google.golang.org/grpc"
)

// identity is the smallest CSI driver.
type identity struct {
	csi.UnimplementedIdentityServer
}

func (identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "example.csikit.dev", VendorVersion: "1"}, nil
}

func (identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

func (identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// A program checks a running driver with some of the rules and evaluates the report.
func ExampleCheck() {
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	socket, err := net.Listen("unix", filepath.Join(dir, "csi.sock"))
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, identity{})
	go server.Serve(socket)
	defer server.Stop()

	report, err := csitest.Check(context.Background(), csitest.Target{Endpoint: "unix://" + socket.Addr().String()}, csitest.Config{
		Rules: []string{"identity.", "capability.", "node."},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, x := range report.ResultsWith(csitest.Failed) {
		fmt.Println(x.Rule.Level, x.Rule.ID, x.Failures)
	}
	for _, x := range report.ResultsWith(csitest.NotRun) {
		fmt.Println(x.Rule.ID, "needs the", x.MissingFacility)
	}
	fmt.Println("ok:", report.OK())
	// Output:
	// identity.info.same-everywhere needs the controller endpoint
	// ok: true
}
