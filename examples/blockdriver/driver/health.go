package driver

import (
	"context"
	"errors"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/nodeops"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The RPCs about the health of volumes and of the storage, of both services. That a volume
// does not respond is found at its mounts, and needs nothing of the storage.

func init() {
	abilities = append(abilities, ability{
		of: func(v any) bool { return implements[storage.Backend](v) && implements[storage.HealthReporter](v) },
		controller: []csi.ControllerServiceCapability_RPC_Type{
			csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH, csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
		},
	}, ability{
		of:   implements[storage.Devices],
		node: []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH},
	}, ability{
		of:   implements[storage.StorageHealthReporter],
		node: []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH},
	})
}

func csiHealth(volumeID string, problems []storage.Problem) *csi.VolumeHealth {
	h := &csi.VolumeHealth{VolumeId: volumeID}
	for _, p := range problems {
		h.HealthStatuses = append(h.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{
			Status: p.Severity, Reason: p.Reason, Message: truncate(p.Text, 128),
		})
	}
	return h
}

func (c *controller) ControllerGetVolumeHealth(ctx context.Context, req *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	b, ok := c.backend.(storage.HealthReporter)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "the storage does not report the health of volumes")
	}
	problems, err := b.CheckVolume(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: csiHealth(req.GetVolumeId(), problems)}, nil
}

// ControllerListVolumeHealth lists only the volumes with problems. Its token is one of
// ListVolumes: no more volumes are read than there is room for problems.
func (c *controller) ControllerListVolumeHealth(ctx context.Context, req *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	b, ok := c.backend.(storage.HealthReporter)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "the storage does not report the health of volumes")
	}
	resp, limit := &csi.ControllerListVolumeHealthResponse{}, pageSize(req.GetMaxEntries())
	for token := req.GetStartingToken(); ; token = resp.NextToken {
		page, next, err := c.backend.ListVolumes(ctx, token, limit-len(resp.Entries))
		if err != nil {
			return nil, err
		}
		resp.NextToken = next
		for _, v := range page {
			problems, err := b.CheckVolume(ctx, v.ID)
			if errors.Is(err, csierr.NotFound) {
				continue // deleted concurrently
			}
			if err != nil {
				return nil, err
			}
			if len(problems) > 0 {
				resp.Entries = append(resp.Entries, csiHealth(v.ID, problems))
			}
		}
		if next == "" || len(resp.Entries) == limit {
			return resp, nil
		}
	}
}

func (n *node) NodeGetVolumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	id := req.GetVolumeId()
	problems, err := n.checkVolume(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, path := range []string{req.GetVolumePublishPath(), req.GetStagingTargetPath()} {
		if path == "" {
			continue
		}
		if p := n.checkMount(ctx, id, path); p != nil {
			problems = append(problems, *p)
			break // the same at both
		}
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: csiHealth(id, problems)}, nil
}

func (n *node) checkVolume(ctx context.Context, id string) ([]storage.Problem, error) {
	if r, ok := n.storage.(storage.HealthReporter); ok {
		return r.CheckVolume(ctx, id)
	}
	_, err := n.devices.Find(ctx, id)
	return nil, err
}

// checkMount finds a volume that does not respond.
func (n *node) checkMount(ctx context.Context, id, path string) *storage.Problem {
	_, err := n.ops.Stats(ctx, nodeops.StatsRequest{VolumeID: id, VolumePath: path})
	if err == nil || status.Code(err) == codes.NotFound { // not mounted there
		return nil
	}
	return &storage.Problem{Severity: csi.VolumeHealthErrorType_INACCESSIBLE, Reason: "VolumeDoesNotAnswer", Text: err.Error()}
}

// NodeGetStorageHealth has one entry per reason.
func (n *node) NodeGetStorageHealth(ctx context.Context, _ *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	r, ok := n.storage.(storage.StorageHealthReporter)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "the storage does not report its health")
	}
	resp := &csi.NodeGetStorageHealthResponse{}
	byReason := map[string][]string{}
	for _, p := range r.CheckStorage(ctx) {
		byReason[p.Reason] = append(byReason[p.Reason], p.Text)
		if len(byReason[p.Reason]) == 1 {
			resp.BackendHealth = append(resp.BackendHealth, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{Status: p.Severity, Reason: p.Reason})
		}
	}
	for _, h := range resp.BackendHealth {
		h.Message = truncate(strings.Join(byReason[h.Reason], "; "), 128)
	}
	return resp, nil
}
