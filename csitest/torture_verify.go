package csitest

import (
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// The steps that only read, and the last ones.

// verifyVolume reads everything about one volume.
func (w *worker) verifyVolume(v *subject) {
	if w.c.has(getVolume) {
		a := again(w, w.c.Controller.ControllerGetVolume, &csi.ControllerGetVolumeRequest{VolumeId: v.id})
		got := a.Resp.GetVolume().GetCapacityBytes()
		if nodes := a.Resp.GetStatus().GetPublishedNodeIds(); got != 0 && got < v.size || w.c.has(publishedNodes) && !sameIDs(nodes, v.nodes()) {
			a.wrong("%d bytes, published to %q%s", v.size, v.nodes(), w.c.history(v.id))
		}
	}
	if a := again(w, w.c.Controller.ValidateVolumeCapabilities, v.validateRequest()); a.Resp.GetConfirmed() == nil {
		a.wrong("confirmed: the volume was created so")
	}
	if w.c.has(volumeHealth) {
		again(w, w.c.Controller.ControllerGetVolumeHealth, &csi.ControllerGetVolumeHealthRequest{VolumeId: v.id})
	}
	if len(v.pods) == 0 {
		return
	}
	if w.c.has(volumeStats) {
		again(w, w.c.Node.NodeGetVolumeStats, v.statsRequest(v.pods[0]))
	}
	if w.c.has(nodeVolumeHealth) {
		again(w, w.c.Node.NodeGetVolumeHealth, &csi.NodeGetVolumeHealthRequest{VolumeId: v.id, VolumePublishPath: v.targetPath(v.pods[0])})
	}
}

// verifyLists reads what is about no volume in particular. Other workers change the
// lists meanwhile: an audit compares them.
func (w *worker) verifyLists() {
	n := int32(1 + w.random.IntN(4))
	if w.c.has(listVolumes) {
		w.pages(func(token string, also ...codes.Code) (string, error) {
			a := again(w, w.c.Controller.ListVolumes, &csi.ListVolumesRequest{MaxEntries: n, StartingToken: token}, also...)
			return a.Resp.GetNextToken(), a.Err
		})
	}
	if w.c.has(listSnapshots) {
		w.pages(func(token string, also ...codes.Code) (string, error) {
			a := again(w, w.c.Controller.ListSnapshots, &csi.ListSnapshotsRequest{MaxEntries: n, StartingToken: token}, also...)
			return a.Resp.GetNextToken(), a.Err
		})
	}
	if w.c.has(listVolumeHealth) {
		w.pages(func(token string, also ...codes.Code) (string, error) {
			a := again(w, w.c.Controller.ControllerListVolumeHealth, &csi.ControllerListVolumeHealthRequest{MaxEntries: n, StartingToken: token}, also...)
			return a.Resp.GetNextToken(), a.Err
		})
	}
	if w.c.has(getCapacity) {
		req := &csi.GetCapacityRequest{Parameters: w.c.run.cfg.Parameters}
		if w.c.has(volumeTopology) {
			req.AccessibleTopology = w.c.run.place
		}
		again(w, w.c.Controller.GetCapacity, req)
	}
	if w.c.has(nodeService) {
		if a := again(w, w.c.Node.NodeGetInfo, &csi.NodeGetInfoRequest{}); a.Resp.GetNodeId() != w.c.run.nodeID {
			a.wrong("node_id %q", w.c.run.nodeID)
		}
	}
	if w.c.has(nodeStorageHealth) {
		again(w, w.c.Node.NodeGetStorageHealth, &csi.NodeGetStorageHealthRequest{})
	}
}

// pages reads a list to its end. ABORTED in the middle is for a token that is no longer
// known, and then the list starts over.
func (w *worker) pages(page func(token string, also ...codes.Code) (next string, err error)) {
	for range 10 {
		for token, n := "", 0; ; n++ {
			var also []codes.Code
			if token != "" {
				also = append(also, codes.Aborted)
			}
			next, err := page(token, also...)
			if err != nil {
				break
			}
			if token = next; token == "" {
				return
			}
			if n == 10_000 {
				w.c.fail("the list to end", "%d pages, and next_token is still set", n)
			}
		}
	}
}

// verifySnapshot reads a snapshot, all of its volume, and its group, which no other worker
// changes.
func (w *worker) verifySnapshot(s *snap) {
	id := s.made.GetSnapshotId()
	if w.c.has(getSnapshot) {
		a := again(w, w.c.Controller.GetSnapshot, &csi.GetSnapshotRequest{SnapshotId: id})
		if got := a.Resp.GetSnapshot(); got.GetSnapshotId() != id || !got.GetCreationTime().AsTime().Equal(s.made.GetCreationTime().AsTime()) {
			a.wrong("%s%s", requestJSON(s.made), w.c.history(id))
		}
	}
	if w.c.has(listSnapshots) {
		a := again(w, w.c.Controller.ListSnapshots, &csi.ListSnapshotsRequest{SourceVolumeId: s.source.id})
		var got, want []string
		for _, e := range a.Resp.GetEntries() {
			got = append(got, e.GetSnapshot().GetSnapshotId())
		}
		for _, o := range w.snaps() {
			if o.source.id == s.source.id {
				want = append(want, o.made.GetSnapshotId())
			}
		}
		if !sameIDs(got, want) && a.Resp.GetNextToken() == "" {
			a.wrong("the snapshots %v%s", want, w.c.history(id))
		}
	}
	if there := slices.Contains(w.volumes, s.source); s.req != nil && there { // external-snapshotter repeats it
		a := again(w, w.c.Controller.CreateSnapshot, s.req)
		if got := a.Resp.GetSnapshot(); got.GetSnapshotId() != id || !got.GetCreationTime().AsTime().Equal(s.made.GetCreationTime().AsTime()) {
			a.wrong("%s, as before%s", requestJSON(s.made), w.c.history(id))
		}
	}
	for _, g := range w.groups {
		if slices.Contains(g.snaps, s) {
			a := again(w, w.c.Group.GetVolumeGroupSnapshot, getGroupRequest(g.made))
			if !sameIDs(members(a.Resp.GetGroupSnapshot()), members(g.made)) {
				a.wrong("the snapshots %v", members(g.made))
			}
		}
	}
}

// staysAway checks that a deleted volume stays deleted.
func (w *worker) staysAway(id string) {
	if w.c.has(getVolume) {
		if a := again(w, w.c.Controller.ControllerGetVolume, &csi.ControllerGetVolumeRequest{VolumeId: id}, codes.NotFound); a.Err == nil {
			a.wrong("NOT_FOUND: the volume was deleted%s", w.c.history(id))
		}
	}
	again(w, w.c.Controller.DeleteVolume, &csi.DeleteVolumeRequest{VolumeId: id})
}

// readMetadata: the blocks of a snapshot, and those that differ from another one of the
// volume, have all that was written on a device.
func (w *worker) readMetadata(s *snap) {
	w.covers(s, &past{}, func() ([]*csi.BlockMetadata, error) {
		return w.c.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: s.made.GetSnapshotId(), MaxResults: int32(w.n % 3)})
	})
	for _, base := range w.snaps() {
		if base != s && base.source == s.source && base.made.GetCreationTime().AsTime().Before(s.made.GetCreationTime().AsTime()) {
			w.covers(s, base.data, func() ([]*csi.BlockMetadata, error) {
				return w.c.delta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: base.made.GetSnapshotId(), TargetSnapshotId: s.made.GetSnapshotId()})
			})
			return
		}
	}
}

func (w *worker) covers(s *snap, base *past, read func() ([]*csi.BlockMetadata, error)) {
	var blocks []*csi.BlockMetadata
	for kills := w.kills.Load(); ; {
		var err error
		if blocks, err = read(); err == nil {
			break
		}
		if code(err) == codes.FailedPrecondition {
			return // there is none for this one
		}
		if !uncertain(err) || w.c.ctx.Err() != nil {
			w.c.fail("a stream that ends with OK", "%v", err)
		}
		w.interrupted.Add(1)
		if w.kills.Load()-kills > maxKillsPerCall {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	if !s.source.isBlock() || !s.data.settled() || !base.settled() || !w.c.has(kernelView) {
		return
	}
	all := extents(blocks, 0)
	for i := range slots {
		if s.data.base[i] == base.base[i] {
			continue
		}
		_, from := s.source.slot("", i)
		covered := false
		for j := 0; j < len(all); j += 2 {
			covered = covered || all[j] <= from && from+slotSize <= all[j+1]
		}
		if !covered {
			w.c.fail(fmt.Sprintf("bytes %d to %d, which were written, among the blocks of snapshot %s", from, from+slotSize, s.made.GetSnapshotId()), "%v", all)
		}
	}
}

// readAll reads every volume once more, and a volume of every snapshot.
func (w *worker) readAll() {
	if !w.c.has(nodeService) {
		return
	}
	for _, v := range slices.Clone(w.volumes) {
		w.bottom(v)
	}
	for _, v := range slices.Clone(w.volumes) {
		w.readOnce(v)
	}
	for _, s := range w.snaps() {
		w.restore(s)
		v := w.volumes[len(w.volumes)-1]
		w.readOnce(v)
		w.delete(v)
	}
}

func (w *worker) readOnce(v *subject) {
	if v.elsewhere {
		return
	}
	w.up(v)
	if w.c.has(kernelView) {
		w.compare(v)
	}
	w.bottom(v)
}

// deleteAll deletes everything, dependents first where that is asked for.
func (w *worker) deleteAll() {
	for _, v := range w.volumes {
		w.bottom(v)
	}
	for {
		before := len(w.volumes) + len(w.snapshots) + len(w.groups)
		for _, v := range slices.Backward(slices.Clone(w.volumes)) {
			w.delete(v)
		}
		for _, s := range slices.Backward(slices.Clone(w.snapshots)) {
			w.deleteSnapshot(s)
		}
		for _, g := range slices.Backward(slices.Clone(w.groups)) {
			w.deleteGroup(g)
		}
		switch left := len(w.volumes) + len(w.snapshots) + len(w.groups); left {
		case 0:
			return
		case before:
			w.c.fail("everything deleted, dependents first", "%d volumes, %d snapshots and %d groups cannot be deleted", len(w.volumes), len(w.snapshots), len(w.groups))
		}
	}
}
