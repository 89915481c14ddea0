//go:build linux

package driver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/examples/blockdriver/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// kubelet finds the driver, asks for its name, and calls it where it says; when the
// driver ends, it has taken its registration back. Without -register there is no
// socket: that is the sidecar's to make.
func TestRegister(t *testing.T) {
	dir := t.TempDir()
	sock, registry := filepath.Join(dir, "csi.sock"), filepath.Join(dir, "reg")
	if err := os.Mkdir(registry, 0o700); err != nil {
		t.Fatal(err)
	}
	bad := []string{"-mode", "controller", "-register", sock, "-endpoint", "unix://" + sock}
	if err := Run(t.Context(), memory.New(), bad, func(string) string { return "" }, os.Stdout, testLog{t}); err == nil || !strings.Contains(err.Error(), "-register is for the node plugin") {
		t.Errorf("%q: %v", bad, err)
	}
	for _, args := range [][]string{{}, {"-register", sock, "-registration-dir", registry}} {
		args = append(args, "-mode", "node", "-endpoint", "unix://"+sock, "-node-id", "node")
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- Run(ctx, memory.New(), args, func(string) string { return "" }, os.Stdout, testLog{t}) }()
		driver := sock
		if args[0] == "-register" {
			driver = registeredAt(t, filepath.Join(registry, defaultName+"-reg.sock"))
		}
		node, err := csi.NewNodeClient(dial(t, driver)).NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}, grpc.WaitForReady(true))
		if err != nil || node.GetNodeId() != "node" {
			t.Errorf("NodeGetInfo: %v, %v", node, err)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if es, err := os.ReadDir(registry); err != nil || len(es) > 0 {
			t.Errorf("left in the registration directory: %v (%v)", es, err)
		}
	}
}

// registeredAt asks as kubelet does, and returns where the driver is. Its messages
// are strings in fields 1 to 4; here they are an empty message's unknown fields.
func registeredAt(t *testing.T, socket string) (endpoint string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var info emptypb.Empty
	if err := dial(t, socket).Invoke(ctx, "/pluginregistration.Registration/GetInfo", &emptypb.Empty{}, &info, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	var fields []string
	for b := info.ProtoReflect().GetUnknown(); len(b) > 0; {
		_, _, n := protowire.ConsumeTag(b)
		text, m := protowire.ConsumeString(b[n:])
		fields, b = append(fields, text), b[n+m:]
	}
	if len(fields) != 4 || fields[0] != "CSIPlugin" || fields[1] != defaultName || fields[3] != "1.0.0" {
		t.Fatalf("GetInfo answers %q", fields)
	}
	return fields[2]
}

// The error for an inline volume names what to use instead. kubelet says that it
// is one only if the CSIDriver has podInfoOnMount, and never stages it.
func TestEphemeralIsRefused(t *testing.T) {
	dir := t.TempDir()
	sock := strings.TrimPrefix(serveMode(t, dir, memory.New(), "-mode", "node"), "unix://")
	for _, attributes := range []map[string]string{nil, {"csi.storage.k8s.io/ephemeral": "true"}} {
		_, err := csi.NewNodeClient(dial(t, sock)).NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
			VolumeId: "csi-0123456789abcdef", TargetPath: filepath.Join(dir, "target"), VolumeContext: attributes,
			VolumeCapability: &csi.VolumeCapability{
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			},
		}, grpc.WaitForReady(true))
		wantCode(t, err, codes.FailedPrecondition, "Kubernetes does not stage an inline ephemeral volume")
	}
}
