package refdriver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// NodeGetCapabilities implements csi.NodeServer.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	resp := &csi.NodeGetCapabilitiesResponse{}
	for n := range csi.NodeServiceCapability_RPC_Type_name {
		if n != 0 && !(d.NoStaging && n == int32(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)) {
			resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
				Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_Type(n)}},
			})
		}
	}
	slices.SortFunc(resp.Capabilities, func(a, b *csi.NodeServiceCapability) int {
		return cmp.Compare(a.GetRpc().GetType(), b.GetRpc().GetType())
	})
	return resp, nil
}

// NodeGetInfo implements csi.NodeServer.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: NodeID, AccessibleTopology: topology(), MaxVolumesPerNode: attachLimit}, nil
}

// NodeStageVolume implements csi.NodeServer.
func (d *Driver) NodeStageVolume(_ context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if d.NoStaging {
		return nil, status.Error(codes.Unimplemented, "volumes are not staged")
	}
	v := d.volumes[req.GetVolumeId()]
	if v == nil {
		return nil, notFound("volume", req.GetVolumeId())
	}
	if err := v.fits(req.GetVolumeCapability(), codes.FailedPrecondition); err != nil {
		return nil, err
	}
	if v.attached[NodeID] == nil {
		return nil, status.Error(codes.FailedPrecondition, "volume is not published to this node")
	}
	path := req.GetStagingTargetPath()
	if before := v.staged[path]; before != nil {
		if !proto.Equal(before.GetVolumeCapability(), req.GetVolumeCapability()) {
			return nil, status.Error(codes.AlreadyExists, "volume is staged there in another way")
		}
		return &csi.NodeStageVolumeResponse{}, nil
	}
	if d.Dir != "" {
		if err := Bind(d.data(v.GetVolumeId()), path, false); err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
	}
	v.staged[path] = req
	return &csi.NodeStageVolumeResponse{}, nil
}

// NodeUnstageVolume implements csi.NodeServer.
func (d *Driver) NodeUnstageVolume(_ context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if d.NoStaging {
		return nil, status.Error(codes.Unimplemented, "volumes are not staged")
	}
	v, path := d.volumes[req.GetVolumeId()], req.GetStagingTargetPath()
	if v == nil || v.staged[path] == nil {
		return &csi.NodeUnstageVolumeResponse{}, nil
	}
	if len(v.published) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume is published at %v", sorted(v.published))
	}
	if d.Dir != "" {
		if err := Unbind(path); err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
	}
	delete(v.staged, path)
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// NodePublishVolume implements csi.NodeServer.
func (d *Driver) NodePublishVolume(_ context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	v := d.volumes[req.GetVolumeId()]
	if v == nil {
		return nil, notFound("volume", req.GetVolumeId())
	}
	if err := v.fits(req.GetVolumeCapability(), codes.FailedPrecondition); err != nil {
		return nil, err
	}
	from := req.GetStagingTargetPath()
	if d.NoStaging {
		from = d.data(v.GetVolumeId())
		if v.attached[NodeID] == nil {
			return nil, status.Error(codes.FailedPrecondition, "volume is not published to this node")
		}
	} else if v.staged[from] == nil {
		return nil, status.Error(codes.FailedPrecondition, "volume is not staged there")
	}
	target := req.GetTargetPath()
	if before := v.published[target]; before != nil {
		if before.GetReadonly() != req.GetReadonly() || !proto.Equal(before.GetVolumeCapability(), req.GetVolumeCapability()) {
			return nil, status.Error(codes.AlreadyExists, "volume is published there in another way")
		}
		return &csi.NodePublishVolumeResponse{}, nil
	}
	if len(v.published) > 0 && !severalTargets(req.GetVolumeCapability().GetAccessMode().GetMode()) {
		return nil, status.Errorf(codes.FailedPrecondition, "volume is published at %v", sorted(v.published))
	}
	var err error
	if v.isBlock() {
		err = os.WriteFile(target, nil, 0o600)
	} else if err = os.Mkdir(target, 0o750); err == nil && d.Dir != "" {
		// tmpfs has no mount option for the group of all files: each publish changes
		// the group of those that are there, as kubelet does for other drivers.
		if gid, noGroup := strconv.Atoi(req.GetVolumeCapability().GetMount().GetVolumeMountGroup()); noGroup == nil && !req.GetReadonly() {
			err = setGroup(from, gid)
		}
		if err == nil {
			err = Bind(from, target, req.GetReadonly() || v.attached[NodeID].GetReadonly(), req.GetVolumeCapability().GetMount().GetMountFlags()...)
		}
	}
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	v.published[target] = req
	return &csi.NodePublishVolumeResponse{}, nil
}

func severalTargets(m csi.VolumeCapability_AccessMode_Mode) bool {
	return m == csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER || m == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
}

// NodeUnpublishVolume implements csi.NodeServer.
func (d *Driver) NodeUnpublishVolume(_ context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	v, target := d.volumes[req.GetVolumeId()], req.GetTargetPath()
	if v == nil || v.published[target] == nil {
		return &csi.NodeUnpublishVolumeResponse{}, nil
	}
	if d.Dir != "" {
		if err := Unbind(target); err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
	}
	if err := os.Remove(target); err != nil && !os.IsNotExist(err) {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	delete(v.published, target)
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// at returns the volume if it is at that path.
func (d *Driver) at(id, path string) (*volume, error) {
	v := d.volumes[id]
	if v == nil || v.published[path] == nil && v.staged[path] == nil {
		return nil, notFound("volume at that path:", id)
	}
	return v, nil
}

// NodeGetVolumeStats implements csi.NodeServer.
func (d *Driver) NodeGetVolumeStats(_ context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	v, err := d.at(req.GetVolumeId(), req.GetVolumePath())
	if err != nil {
		return nil, err
	}
	if d.mounts(v) {
		total, available, err := usage(req.GetVolumePath())
		if err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
			{Unit: csi.VolumeUsage_BYTES, Total: total, Available: available, Used: total - available},
		}}, nil
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: v.GetCapacityBytes(), Available: v.GetCapacityBytes()},
	}}, nil
}

// NodeExpandVolume implements csi.NodeServer.
func (d *Driver) NodeExpandVolume(_ context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	v, err := d.at(req.GetVolumeId(), req.GetVolumePath())
	if err != nil {
		return nil, err
	}
	if req.GetCapacityRange().GetRequiredBytes() > v.GetCapacityBytes() {
		return nil, status.Error(codes.OutOfRange, "ControllerExpandVolume comes first")
	}
	if d.mounts(v) && !d.Directories {
		if err := growDisk(d.data(v.GetVolumeId()), v.GetCapacityBytes()); err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.GetCapacityBytes()}, nil
}

// NodeGetVolumeHealth implements csi.NodeServer.
func (d *Driver) NodeGetVolumeHealth(_ context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	if d.volumes[req.GetVolumeId()] == nil {
		return nil, notFound("volume", req.GetVolumeId())
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{VolumeId: req.GetVolumeId()}}, nil
}

// NodeGetStorageHealth implements csi.NodeServer.
func (d *Driver) NodeGetStorageHealth(context.Context, *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	return &csi.NodeGetStorageHealthResponse{}, nil
}

// data is where the files of a volume lie.
func (d *Driver) data(id string) string { return filepath.Join(d.Dir, id) }

// mounts reports whether the volume is mounted for real.
func (d *Driver) mounts(v *volume) bool { return d.Dir != "" && !v.isBlock() }

func (d *Driver) makeData(v *volume) error {
	if d.Dir == "" {
		return nil
	}
	path := d.data(v.GetVolumeId())
	if err := os.Mkdir(path, 0o750); err != nil || v.isBlock() || d.Directories {
		return err
	}
	return mountDisk(path, v.GetCapacityBytes())
}

// copyData copies the data of one ID to another, for every pair of IDs, as it was at one
// point in time: what does not read the same twice is copied again.
func (d *Driver) copyData(pairs ...string) error {
	for again := d.Dir != ""; again; {
		again = false
		for i := 0; i < len(pairs); i += 2 {
			from, to := d.data(pairs[i]), d.data(pairs[i+1])
			if err := errors.Join(empty(to), os.CopyFS(to, os.DirFS(from))); err != nil {
				return status.Error(codes.Unavailable, err.Error())
			}
		}
		for i := 0; i < len(pairs); i += 2 {
			again = again || !sameData(d.data(pairs[i]), d.data(pairs[i+1]))
		}
	}
	for i := 1; i < len(pairs) && d.Copied != nil; i += 2 {
		d.Copied(pairs[i-1], pairs[i])
	}
	return nil
}

// sameData reports whether the files of a are in b, too.
func sameData(a, b string) bool {
	files, err := os.ReadDir(a)
	for _, f := range files {
		one, err1 := os.ReadFile(filepath.Join(a, f.Name()))
		other, err2 := os.ReadFile(filepath.Join(b, f.Name()))
		if err1 != nil || err2 != nil || !bytes.Equal(one, other) {
			return false
		}
	}
	return err == nil
}

// empty empties a directory, which may be one that something is mounted at.
func empty(dir string) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, f := range files {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, f.Name())))
	}
	return err
}

// removeCopy removes the data of a snapshot.
func (d *Driver) removeCopy(id string) error {
	if d.Dir == "" {
		return nil
	}
	return os.RemoveAll(d.data(id))
}

func (d *Driver) removeData(v *volume) error {
	if d.Dir == "" {
		return nil
	}
	path := d.data(v.GetVolumeId())
	if d.Directories {
		return os.RemoveAll(path)
	}
	if !v.isBlock() {
		if err := Unbind(path); err != nil {
			return err
		}
	}
	return os.Remove(path)
}
