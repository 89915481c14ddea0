package csiserver

import (
	"context"
	"reflect"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

type (
	byPointer struct{ csi.UnimplementedNodeServer }
	byValue   struct {
		csi.UnimplementedNodeServer
		_ [9]int
	}
	base     struct{ byPointer }
	deep     struct{ *base }
	facade   struct{ csi.NodeServer }
	shadowed struct {
		csi.UnimplementedNodeServer // hides what is deeper down
		*base
	}
	noStub struct{ csi.UnsafeNodeServer }
)

func (*byPointer) NodeStageVolume(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return nil, nil
}

func (byValue) NodeStageVolume(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return nil, nil
}

func TestIsStub(t *testing.T) {
	for _, tt := range []struct {
		service any
		want    bool // of NodeStageVolume; NodeUnstageVolume is a stub in all but the last
	}{
		{csi.UnimplementedNodeServer{}, true},
		{&csi.UnimplementedNodeServer{}, true},
		{&byPointer{}, false},
		{byValue{}, false},
		{&byValue{}, false},
		{&base{}, false},
		{deep{&base{}}, false},
		{&deep{&base{}}, false},
		{facade{&byPointer{}}, false},
		{&facade{deep{&base{}}}, false},
		{facade{csi.UnimplementedNodeServer{}}, true},
		{&shadowed{base: &base{}}, true},
	} {
		for method, want := range map[string]bool{"NodeStageVolume": tt.want, "NodeUnstageVolume": true} {
			if got := isStub(reflect.ValueOf(tt.service), method); got != want {
				t.Errorf("%T.%s: %v, want %v", tt.service, method, got, want)
			}
		}
	}
	for _, unknown := range []any{nil, (*byPointer)(nil), facade{}, &facade{}, deep{}, noStub{}, func() {}} {
		if isStub(reflect.ValueOf(unknown), "NodeStageVolume") && !reflect.ValueOf(unknown).IsZero() {
			t.Errorf("%T: a stub", unknown)
		}
	}
}

// TestPromisedCalls holds the tables to the services.
func TestPromisedCalls(t *testing.T) {
	methods := methodsOfCSI()
	check := func(what string, calls []string) {
		for _, c := range calls {
			if methods[c] == "" {
				t.Errorf("%s: CSI has no %s", what, c)
			}
		}
	}
	for n, name := range csi.ControllerServiceCapability_RPC_Type_name {
		t := csi.ControllerServiceCapability_RPC_Type(n)
		check(name, controllerCalls[t])
	}
	for n, name := range csi.NodeServiceCapability_RPC_Type_name {
		check(name, nodeCalls[csi.NodeServiceCapability_RPC_Type(n)])
	}
	for n, name := range csi.GroupControllerServiceCapability_RPC_Type_name {
		check(name, groupCalls[csi.GroupControllerServiceCapability_RPC_Type(n)])
	}
	check("SnapshotMetadata", metadataCalls)
}
