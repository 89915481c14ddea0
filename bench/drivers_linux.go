package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/nodeops"
	"github.com/csikit/csikit/volumelock"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/mount-utils"
)

// driver is a program that publishes staged volumes, started as a process of its own.
type driver struct {
	name  string
	about string
	serve func(ctx context.Context, socket string) error
}

const (
	limitDriver   = "limit"
	utilsDriver   = "mount-utils"
	nodeopsDriver = "nodeops"
	fullDriver    = "csikit"
	tracedDriver  = "csikit-telemetry"
)

// drivers are the programs that are compared.
var drivers = []driver{
	{limitDriver, "bare gRPC and bare system calls, without any check: the limit", func(ctx context.Context, socket string) error {
		return serveBare(ctx, socket, &bareNode{})
	}},
	{utilsDriver, "bare gRPC, k8s.io/mount-utils with one long-lived Mounter, a lock per volume", func(ctx context.Context, socket string) error {
		return serveBare(ctx, socket, &utilsNode{mounter: mount.NewWithoutSystemd("")})
	}},
	{nodeopsDriver, "bare gRPC, nodeops", func(ctx context.Context, socket string) error {
		node, err := newNode(nodeops.Config{})
		if err != nil {
			return err
		}
		return serveBare(ctx, socket, node)
	}},
	{fullDriver, "csiserver with a JSON log, validation and locks; nodeops", serveFull},
	{tracedDriver, "the same with metrics, and traces of every call", func(ctx context.Context, socket string) error {
		metrics := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
		traces := sdktrace.NewTracerProvider(sdktrace.WithBatcher(discardSpans{}))
		defer traces.Shutdown(context.Background())
		return serveCSIKit(ctx, socket, nodeops.Config{MeterProvider: metrics, TracerProvider: traces},
			csiserver.WithMeterProvider(metrics), csiserver.WithTracerProvider(traces))
	}},
}

// serveDriver is the process of the driver with that name.
func serveDriver(name, socket string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for _, d := range drivers {
		if d.name == name {
			return d.serve(ctx, socket)
		}
	}
	return fmt.Errorf("there is no driver %q", name)
}

func serveBare(ctx context.Context, socket string, node csi.NodeServer) error {
	lis, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	csi.RegisterNodeServer(server, node)
	context.AfterFunc(ctx, server.Stop)
	return server.Serve(lis)
}

func serveFull(ctx context.Context, socket string) error {
	return serveCSIKit(ctx, socket, nodeops.Config{})
}

func serveCSIKit(ctx context.Context, socket string, cfg nodeops.Config, opts ...csiserver.Option) error {
	// A file, as under kubelet, where the container runtime reads from a pipe: written, not dropped.
	out, err := os.OpenFile(filepath.Join(filepath.Dir(socket), "log"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	log := slog.New(slog.NewJSONHandler(io.Writer(out), nil))
	lis, err := csiserver.Listen("unix://" + socket)
	if err != nil {
		return err
	}
	cfg.Logger = log
	node, err := newNode(cfg)
	if err != nil {
		return err
	}
	server, err := csiserver.New(csiserver.Info{Name: "bench.csikit.dev", VendorVersion: "1"}, append(opts,
		csiserver.WithNode(node), csiserver.WithLogger(log),
		csiserver.WithInterceptors(volumelock.Interceptor(new(volumelock.Table))))...)
	if err != nil {
		return err
	}
	return server.Serve(ctx, lis)
}

// discardSpans exports spans to nowhere.
type discardSpans struct{}

func (discardSpans) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (discardSpans) Shutdown(context.Context) error                             { return nil }

// bare answers what a server asks its own node service.
type bare struct{ csi.UnimplementedNodeServer }

func (bare) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node"}, nil
}

func (bare) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

// node is a driver's node service with nodeops.
type node struct {
	bare
	ops *nodeops.Node
}

func newNode(cfg nodeops.Config) (*node, error) {
	ops, err := nodeops.New(cfg)
	return &node{ops: ops}, err
}

func (n *node) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	err := n.ops.PublishFilesystem(ctx, nodeops.PublishFilesystemRequest{
		VolumeID: r.GetVolumeId(), StagingTargetPath: r.GetStagingTargetPath(), TargetPath: r.GetTargetPath(),
		MountFlags: r.GetVolumeCapability().GetMount().GetMountFlags(), ReadOnly: r.GetReadonly(),
	})
	return &csi.NodePublishVolumeResponse{}, err
}

func (n *node) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	err := n.ops.Unpublish(ctx, nodeops.UnpublishRequest{VolumeID: r.GetVolumeId(), TargetPath: r.GetTargetPath()})
	return &csi.NodeUnpublishVolumeResponse{}, err
}

// bareNode does what it takes and checks nothing.
type bareNode struct{ bare }

func (bareNode) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := unix.Mkdir(r.GetTargetPath(), 0o750); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, bareBind(r.GetStagingTargetPath(), r.GetTargetPath(), r.GetReadonly())
}

func bareBind(source, target string, readOnly bool) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.O_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	if readOnly {
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return err
		}
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

func (bareNode) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := unix.Unmount(r.GetTargetPath(), 0); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, unix.Rmdir(r.GetTargetPath())
}

// utilsNode is a driver on k8s.io/mount-utils without the mistakes of many: one Mounter, one
// lookup of the target, a lock by volume.
type utilsNode struct {
	bare
	mounter mount.Interface
	busy    sync.Map
}

func (n *utilsNode) lock(id string) (func(), error) {
	if _, taken := n.busy.LoadOrStore(id, true); taken {
		return nil, status.Error(codes.Aborted, "an operation is pending for volume "+id)
	}
	return func() { n.busy.Delete(id) }, nil
}

func (n *utilsNode) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	unlock, err := n.lock(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer unlock()
	target := r.GetTargetPath()
	mounted, err := n.mounter.IsMountPoint(target)
	if errors.Is(err, os.ErrNotExist) {
		err = os.Mkdir(target, 0o750)
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if mounted {
		return &csi.NodePublishVolumeResponse{}, nil
	}
	options := []string{"bind"}
	if r.GetReadonly() {
		options = append(options, "ro")
	}
	if err := n.mounter.Mount(r.GetStagingTargetPath(), target, "", options); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (n *utilsNode) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	unlock, err := n.lock(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := mount.CleanupMountPoint(r.GetTargetPath(), n.mounter, false); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}
