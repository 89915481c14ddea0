package csitest

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// What fails because of one call that the driver does not survive has one cause.
func TestCauseOfDeath(t *testing.T) {
	socket := filepath.Join(socketDir(t), "csi.sock")
	report, err := Check(t.Context(), Target{Endpoint: "unix://" + socket, Start: func() *exec.Cmd {
		return gate.RoleCommand(t.Context(), "reference", socket, "ControllerExpandVolume")
	}}, Config{Rules: []string{"controller.expand.grows", "controller.expand.never-shrinks", "controller.expand.volume-missing", "controller.delete.idempotent"}, Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if causes := report.Causes(); len(causes) != 1 || len(causes[0]) != 3 {
		t.Errorf("%+v", causes)
	}
}

// An error with other values in its message is the same; another code, RPC or text is not.
func TestCauses(t *testing.T) {
	var n atomic.Int32
	target, cfg := reference(t, defect{unary: chain(
		instead(func(r *csi.ValidateVolumeCapabilitiesRequest) (proto.Message, error) {
			return nil, status.Errorf(codes.Internal, "runtime error: index out of range [%d], volume %q", n.Add(1), r.GetVolumeId())
		}),
		instead(func(r *csi.ControllerExpandVolumeRequest) (proto.Message, error) {
			return nil, status.Error(codes.Internal, "something else")
		}),
		before(func(r *csi.ListVolumesRequest) { r.MaxEntries = max(r.MaxEntries, 0) }),
	)})
	cfg.Rules = []string{"controller.validate.confirms", "controller.validate.volume-missing", "controller.expand.grows", "controller.expand.never-shrinks", "controller.list.negative-max", "controller.publish.idempotent"}
	report, err := Check(t.Context(), target, cfg)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, group := range report.Causes() {
		ids := make([]string, len(group))
		for i, x := range group {
			ids[i] = x.Rule.ID
		}
		got = append(got, strings.Join(ids, " "))
	}
	want := []string{"controller.list.negative-max", "controller.validate.confirms controller.validate.volume-missing", "controller.expand.grows controller.expand.never-shrinks"}
	if !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("%q, want %q", got, want)
	}
}
