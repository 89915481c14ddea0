package csiserver_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// shareNode is the Node service of a plugin that knows one share.
type shareNode struct {
	csi.UnimplementedNodeServer
}

func (*shareNode) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (*shareNode) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node-1"}, nil
}

func (*shareNode) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if r.GetVolumeId() != "share-1" {
		return nil, status.Errorf(codes.NotFound, "no share %q", r.GetVolumeId())
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// A whole plugin: an Identity service, which is built in, and a Node service.
func Example() {
	dir, err := os.MkdirTemp("", "csikit")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	endpoint := "unix://" + filepath.Join(dir, "csi.sock") // os.Getenv("CSI_ENDPOINT")

	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	server, err := csiserver.New(
		csiserver.Info{Name: "csi.example.com", VendorVersion: "v1.2.3"},
		csiserver.WithNode(&shareNode{}),
		csiserver.WithLogger(logger))
	if err != nil {
		panic(err)
	}
	lis, err := csiserver.Listen(endpoint)
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background()) // signal.NotifyContext(…, SIGTERM)
	served := make(chan error)
	go func() { served <- server.Serve(ctx, lis) }()

	// What follows is the part of kubelet.
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	fmt.Println(info.GetName(), info.GetVendorVersion(), err)
	node := csi.NewNodeClient(conn)
	for _, r := range []*csi.NodeUnpublishVolumeRequest{
		{VolumeId: "share-1", TargetPath: "/pods/1/mount"},
		{VolumeId: "share-2", TargetPath: "/pods/1/mount"},
		{VolumeId: "share-1", TargetPath: "mount"},
	} {
		_, err := node.NodeUnpublishVolume(ctx, r)
		fmt.Printf("%v: %s.\n", status.Code(err), status.Convert(err).Message())
	}

	stop()
	fmt.Println(<-served)
	// Output:
	// csi.example.com v1.2.3 <nil>
	// OK: .
	// NotFound: no share "share-2".
	// InvalidArgument: invalid NodeUnpublishVolumeRequest: target_path is "mount" and must be an absolute path.
	// <nil>
}
