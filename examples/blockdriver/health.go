package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/nodeops"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The RPCs about the health of volumes and of the storage, of both services.

// Problem is something that is wrong with a volume, found by looking.
type Problem struct {
	Severity csi.VolumeHealthErrorType
	Reason   string // in CamelCase
	Text     string
}

const (
	degraded     = csi.VolumeHealthErrorType_DEGRADED
	inaccessible = csi.VolumeHealthErrorType_INACCESSIBLE
	dataLoss     = csi.VolumeHealthErrorType_DATA_LOSS
)

// problemOf returns the problem of a volume for the error of a check.
func problemOf(err error) Problem {
	for _, p := range []struct {
		kind     error
		severity csi.VolumeHealthErrorType
		reason   string
	}{
		{errImageMissing, dataLoss, "ImageMissing"},
		{errImageTruncated, dataLoss, "ImageTruncated"},
		{errImageForeign, dataLoss, "ImageNotAFile"},
		{errDamaged, inaccessible, "MetadataDamaged"},
		{errNotFound, inaccessible, "MetadataMissing"},
	} {
		if errors.Is(err, p.kind) {
			return Problem{p.severity, p.reason, err.Error()}
		}
	}
	return Problem{inaccessible, "PoolNotReadable", err.Error()}
}

func csiHealth(volumeID string, problems []Problem) *csi.VolumeHealth {
	h := &csi.VolumeHealth{VolumeId: volumeID}
	for _, p := range problems {
		h.HealthStatuses = append(h.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{
			Status: p.Severity, Reason: p.Reason, Message: truncate(p.Text, 128),
		})
	}
	return h
}

func (c *controller) ControllerGetVolumeHealth(ctx context.Context, req *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	problems, err := c.backend.CheckVolume(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: csiHealth(req.GetVolumeId(), problems)}, nil
}

// ControllerListVolumeHealth lists only the volumes with problems. Its token is the
// last volume that was checked.
func (c *controller) ControllerListVolumeHealth(ctx context.Context, req *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	resp, limit := &csi.ControllerListVolumeHealthResponse{}, pageSize(req.GetMaxEntries())
	for token := req.GetStartingToken(); ; {
		page, next, err := c.backend.ListVolumes(ctx, token, 1000)
		if err != nil {
			return nil, err
		}
		for i, v := range page {
			problems, err := c.backend.CheckVolume(ctx, v.ID)
			if errors.Is(err, errNotFound) {
				continue // deleted concurrently
			}
			if err != nil {
				return nil, err
			}
			if len(problems) == 0 {
				continue
			}
			resp.Entries = append(resp.Entries, csiHealth(v.ID, problems))
			if len(resp.Entries) == limit && (next != "" || i < len(page)-1) {
				resp.NextToken = v.ID
				return resp, nil
			}
		}
		if token = next; token == "" {
			return resp, nil
		}
	}
}

func (n *nodeServer) NodeGetVolumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	id := req.GetVolumeId()
	problems, err := n.volumes.CheckVolume(ctx, id)
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

// checkMount finds a volume that no longer answers, and one that became read-only
// because of errors.
func (n *nodeServer) checkMount(ctx context.Context, id, path string) *Problem {
	_, err := n.ops.Stats(ctx, nodeops.StatsRequest{VolumeID: id, VolumePath: path})
	switch {
	case status.Code(err) == codes.NotFound: // not mounted there
		return nil
	case err != nil:
		return &Problem{inaccessible, "VolumeDoesNotAnswer", err.Error()}
	}
	v, _, err := n.volumes.FindVolume(ctx, id)
	if err == nil && v.Attachment != nil && !v.Attachment.ReadOnly && becameReadOnly(path) {
		return &Problem{degraded, "FileSystemReadOnly", fmt.Sprintf("the file system at %s is read-only, though it was mounted for writing: see the kernel's log", path)}
	}
	return nil
}

// NodeGetStorageHealth checks the pools of this node.
func (n *nodeServer) NodeGetStorageHealth(ctx context.Context, _ *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	resp := &csi.NodeGetStorageHealthResponse{}
	byReason := map[string][]string{} // one entry per reason
	for _, p := range n.volumes.CheckPools(ctx) {
		byReason[p.Reason] = append(byReason[p.Reason], p.Text)
		if len(byReason[p.Reason]) > 1 {
			continue
		}
		state := csi.StorageHealthErrorType_STORAGE_DEGRADED
		if p.Reason == reasonAway {
			state = csi.StorageHealthErrorType_STORAGE_UNREACHABLE
		}
		resp.BackendHealth = append(resp.BackendHealth, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{Status: state, Reason: p.Reason})
	}
	for _, h := range resp.BackendHealth {
		h.Message = truncate(strings.Join(byReason[h.Reason], "; "), 128)
	}
	return resp, nil
}
