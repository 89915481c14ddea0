package csispec_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/protobuf/proto"
)

// A message of 4 MiB has room for millions of elements that each break a rule.
func TestViolationsAreBounded(t *testing.T) {
	const many = 500_000
	capabilities, flags := make([]*csi.VolumeCapability, many), make([]*csi.ListSnapshotsResponse_Entry, many)
	for i := range many {
		capabilities[i], flags[i] = &csi.VolumeCapability{}, &csi.ListSnapshotsResponse_Entry{}
	}
	for _, m := range []proto.Message{
		&csi.CreateVolumeRequest{Name: "v", VolumeCapabilities: capabilities},
		&csi.ListSnapshotsResponse{Entries: flags},
		&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "g", SnapshotIds: make([]string, many)},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := csispec.Validate(m)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
			t.Errorf("%T: %d KiB allocated", m, n>>10)
		}
		v, ok := errors.AsType[*csispec.Violations](err)
		if !ok || len(v.All) > 256 || v.Omitted < many-256 {
			t.Fatalf("%T: %.200v", m, err)
		}
		if want := fmt.Sprintf("; and %d more", len(v.All)-32+v.Omitted); !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%T: %.100s does not end in %s", m, err, want)
		}
	}
}

// What Kubernetes sends although the specification forbids it is allowed by name.
func TestKubernetesAllowances(t *testing.T) {
	inline := example[*csi.NodePublishVolumeRequest](t)
	inline.StagingTargetPath = ""
	inline.VolumeContext = map[string]string{"csi.storage.k8s.io/ephemeral": "true"}
	staged := proto.Clone(inline).(*csi.NodePublishVolumeRequest)
	staged.VolumeContext["csi.storage.k8s.io/ephemeral"] = "false"
	certificates := example[*csi.NodePublishVolumeRequest](t)
	certificates.Secrets = map[string]string{"ca.crt": strings.Repeat("x", 100<<10)}
	badKey := proto.Clone(certificates).(*csi.NodePublishVolumeRequest)
	badKey.Secrets["a b"] = "x"
	stages := csispec.WithStageUnstageVolume()
	for _, tt := range []struct {
		name string
		m    proto.Message
		opts []csispec.Option
		ok   bool
	}{
		{"inline", inline, []csispec.Option{stages}, false},
		{"inline, allowed", inline, []csispec.Option{stages, csispec.WithInlineVolumesAllowed()}, true},
		{"staged, allowed", staged, []csispec.Option{stages, csispec.WithInlineVolumesAllowed()}, false},
		{"large", certificates, nil, false},
		{"large, allowed", certificates, []csispec.Option{csispec.WithLargeSecretsAllowed()}, true},
		{"large with a bad key", badKey, []csispec.Option{csispec.WithLargeSecretsAllowed()}, false},
	} {
		if err := csispec.Validate(tt.m, tt.opts...); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
