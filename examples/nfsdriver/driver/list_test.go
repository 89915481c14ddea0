package driver

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/examples/nfsdriver/memory"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// unlisted hides the optional interfaces of a storage.
type unlisted struct{ storage.Backend }

func TestListVolumes(t *testing.T) {
	const list = csi.ControllerServiceCapability_RPC_LIST_VOLUMES
	if c := NewController(memory.New()).(*controller); !c.has(list) {
		t.Error("a storage with lists is not offered")
	}
	c := NewController(unlisted{memory.New()}).(*controller)
	_, err := c.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	if c.has(list) || status.Code(err) != codes.Unimplemented {
		t.Errorf("without lists: %v, %v", c.capabilities, err)
	}
}
