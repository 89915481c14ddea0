package driver

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

func TestGetCapacity(t *testing.T) {
	c := testController(t)
	for name, test := range map[string]struct {
		req   *csi.GetCapacityRequest
		least int64 // 0: no volume can be created
	}{
		"nothing":            {&csi.GetCapacityRequest{}, mib},
		"ext4":               {&csi.GetCapacityRequest{VolumeCapabilities: caps(mountCap("", writer))}, 16 * mib},
		"xfs":                {&csi.GetCapacityRequest{VolumeCapabilities: caps(mountCap("xfs", writer))}, 300 * mib},
		"several nodes":      {&csi.GetCapacityRequest{VolumeCapabilities: caps(mountCap("", everywhere))}, 0},
		"unknown parameters": {&csi.GetCapacityRequest{Parameters: map[string]string{"tier": "gold"}}, 0},
		"empty topology":     {&csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{}}, mib},
	} {
		resp, err := c.GetCapacity(t.Context(), test.req)
		must(t, err)
		if resp.GetMinimumVolumeSize().GetValue() != test.least || (resp.GetAvailableCapacity() > 0) != (test.least > 0) {
			t.Errorf("%s: %v", name, resp)
		}
	}
}
