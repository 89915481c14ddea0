package csispec_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/protobuf/proto"
)

// typical is what kubelet sends for a volume of a CSI driver with attach,
// staging and pod info: some 600 bytes on the wire.
func typical() *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{
		VolumeId:          "vol-0a1b2c3d4e5f60718",
		PublishContext:    map[string]string{"devicePath": "/dev/xvdba", "lun": "3"},
		StagingTargetPath: "/var/lib/kubelet/plugins/kubernetes.io/csi/block.csi.example.com/4b227777d4dd1fc61c6f884f48641d02/globalmount",
		TargetPath:        "/var/lib/kubelet/pods/8f14e45f-ceea-467f-a8d1-1b0c1c6a5d2e/volumes/kubernetes.io~csi/pvc-6f4922f4/mount",
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4", MountFlags: []string{"noatime", "discard"}}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
		Secrets: map[string]string{"username": "csi", "password": "correct-horse"},
		VolumeContext: map[string]string{
			"csi.storage.k8s.io/ephemeral":           "false",
			"csi.storage.k8s.io/pod.name":            "web-0",
			"csi.storage.k8s.io/pod.namespace":       "default",
			"csi.storage.k8s.io/pod.uid":             "8f14e45f-ceea-467f-a8d1-1b0c1c6a5d2e",
			"csi.storage.k8s.io/serviceAccount.name": "default",
			"pool":                                   "ssd",
		},
	}
}

// againstMarshal measures f and proto.Marshal of m alternately, so that both run under
// the same conditions, and reports the ratio. ns/op is that of f only.
func againstMarshal(b *testing.B, m proto.Message, f func()) {
	const batch = 64
	var ours, marshal time.Duration
	for i := 0; i < b.N; i += batch {
		n := min(batch, b.N-i)
		start := time.Now()
		for range n {
			f()
		}
		between := time.Now()
		for range n {
			if _, err := proto.Marshal(m); err != nil {
				b.Fatal(err)
			}
		}
		ours += between.Sub(start)
		marshal += time.Since(between)
	}
	b.ReportMetric(float64(ours.Nanoseconds())/float64(b.N), "ns/op")
	b.ReportMetric(float64(marshal.Nanoseconds())/float64(b.N), "marshal-ns/op")
	b.ReportMetric(float64(ours)/float64(marshal), "x-marshal")
	b.ReportMetric(testing.AllocsPerRun(100, f), "own-allocs/op")
}

func BenchmarkValidate(b *testing.B) {
	m := typical()
	b.Logf("%d bytes on the wire", proto.Size(m))
	for _, tt := range []struct {
		name string
		opts []csispec.Option
	}{
		{"plain", nil},
		{"options", []csispec.Option{csispec.WithCSISanity(), csispec.WithCapabilities(csispec.Capabilities{
			Node:   []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
			Plugin: []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE},
		})}},
	} {
		b.Run(tt.name, func(b *testing.B) {
			againstMarshal(b, m, func() {
				if err := csispec.Validate(m, tt.opts...); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

// BenchmarkValidateTopology has what a provisioner sends for a cluster with so many
// nodes, each with its own topology: all of them twice, in two orders.
func BenchmarkValidateTopology(b *testing.B) {
	for _, nodes := range []int{3, 100, 5000} {
		m := example[*csi.CreateVolumeRequest](b)
		r := &csi.TopologyRequirement{}
		for i := range nodes {
			r.Requisite = append(r.Requisite, segments("topology.example.com/node", fmt.Sprint("node-", i)))
		}
		r.Preferred = slices.Concat(r.Requisite[nodes/2:], r.Requisite[:nodes/2])
		m.AccessibilityRequirements = r
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			againstMarshal(b, m, func() {
				if err := csispec.Validate(m); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

func BenchmarkRedact(b *testing.B) {
	m := typical()
	off := slog.New(slog.NewJSONHandler(io.Discard, nil))
	on := slog.New(slog.NewJSONHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctx := context.Background()
	for _, tt := range []struct {
		name string
		f    func()
	}{
		{"unprinted", func() { off.LogAttrs(ctx, slog.LevelDebug, "x", slog.Any("request", csispec.Redact(m))) }},
		{"string", func() { _ = csispec.Redact(m).String() }},
		{"value", func() { _ = csispec.Redact(m).LogValue() }},
		{"slog-json", func() { on.LogAttrs(ctx, slog.LevelDebug, "x", slog.Any("request", csispec.Redact(m))) }},
		{"slog-json-empty", func() { on.LogAttrs(ctx, slog.LevelDebug, "x") }},
	} {
		b.Run(tt.name, func(b *testing.B) { againstMarshal(b, m, tt.f) })
	}
}
