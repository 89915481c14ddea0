package csitest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// What one worker has at most.
const (
	mostVolumes   = 4
	mostSnapshots = 4
	mostGroups    = 2
)

// A worker does one step after the other with what it has. Its choices follow from the
// seed and from the driver's answers, and from no other worker.
type worker struct {
	*tortured
	c        *ruleRun
	n        int
	random   *rand.Rand
	attached int  // volumes that it may have attached at the same time
	twin     bool // the next call is made twice at the same time
	writes   int

	volumes   []*subject
	snapshots []*snap
	groups    []*groupSnap
	gone      []string // IDs of volumes that were deleted
}

func newWorker(t *tortured, c *ruleRun, n, attached int) *worker {
	return &worker{tortured: t, c: c, n: n, random: rand.New(rand.NewPCG(t.Seed, uint64(n)+1)), attached: attached}
}

// A subject is a volume, and what is known of it.
type subject struct {
	*volume
	size      int64
	data      *past
	elsewhere bool // it is where the node is not
	modified  bool // and CreateVolume may not return it again
	grown     bool // the node has not heard of it yet
	used      bool // a file system has been made on it
	attached  bool
	readOnly  bool // attached so
	staged    bool
	pods      []string
	source    string // the ID of what it was made of
}

func (v *subject) nodes() []string {
	if v.attached {
		return []string{v.node}
	}
	return nil
}

// A snap is a snapshot.
type snap struct {
	made   *csi.Snapshot
	req    *csi.CreateSnapshotRequest // nil for a member of a group
	source *subject                   // which may be gone
	data   *past
}

type groupSnap struct {
	made  *csi.VolumeGroupSnapshot
	req   *csi.CreateVolumeGroupSnapshotRequest
	snaps []*snap
}

// snaps returns all snapshots.
func (w *worker) snaps() []*snap {
	all := slices.Clone(w.snapshots)
	for _, g := range w.groups {
		all = append(all, g.snaps...)
	}
	return all
}

// work does steps until the run is over.
func (w *worker) work() {
	for !w.ended(w.c) {
		func() {
			w.still.RLock()
			defer w.still.RUnlock()
			w.twin = w.random.IntN(8) == 0
			w.step()
			w.twin = false
		}()
	}
}

// A chance is one of the things that can be done now, and how likely it is.
type chance struct {
	weight int
	do     func()
}

func (w *worker) step() {
	var all []chance
	may := func(weight int, possible bool, do func()) {
		if possible {
			all = append(all, chance{weight, do})
		}
	}
	w.chances(may)
	for _, v := range w.volumes {
		w.chancesOf(v, may)
	}
	sum := 0
	for _, x := range all {
		sum += x.weight
	}
	at := w.random.IntN(sum)
	for _, x := range all {
		if at -= x.weight; at < 0 {
			x.do()
			return
		}
	}
}

func (w *worker) chances(may func(int, bool, func())) {
	room, snaps := len(w.volumes) < mostVolumes, w.snaps()
	may(8, room, func() { w.create(nil, nil) })
	may(8, room && len(snaps) > 0, func() { w.restore(pick(w, snaps)) })
	may(6, room && len(w.volumes) > 0 && w.c.has(cloneVolume), func() { w.clone(pick(w, w.volumes)) })
	may(2, len(w.snapshots) > 0, func() { w.deleteSnapshot(pick(w, w.snapshots)) })
	may(8, len(w.snapshots) >= mostSnapshots, func() { w.deleteSnapshot(w.snapshots[0]) })
	may(6, len(w.volumes) > 1 && len(w.groups) < mostGroups && w.c.has(groupService), w.cutGroup)
	may(2, len(w.groups) > 0, func() { w.deleteGroup(pick(w, w.groups)) })
	may(2, len(snaps) > 0, func() { w.verifySnapshot(pick(w, snaps)) })
	may(1, true, w.verifyLists)
	may(1, len(w.gone) > 0, func() { w.staysAway(pick(w, w.gone)) })
	may(2, len(snaps) > 0 && w.c.has(snapshotMetadata), func() { w.readMetadata(pick(w, snaps)) })
}

func (w *worker) chancesOf(v *subject, may func(int, bool, func())) {
	node := w.c.has(nodeService) && !v.elsewhere
	others := 0
	for _, o := range w.volumes {
		if o.attached || len(o.pods) > 0 {
			others++
		}
	}
	idle := !v.attached && !v.staged && len(v.pods) == 0
	may(6, node && len(v.pods) == 0 && (!idle || others < w.attached), func() { w.up(v) })
	may(2, node && idle && others < w.attached && w.c.has(attachVolume), func() { w.attach(v) })
	may(2, node && idle && v.used && others < w.attached && w.c.has(attachReadonly), func() { w.visitReadOnly(v) })
	may(1, node && idle && w.c.has(attachVolume) && w.c.has(secondNode), func() { w.visitElsewhere(v) })
	may(1, v.attached && w.c.has(secondNode), func() { w.fenced(v) })
	may(1, v.attached && !v.staged && len(v.pods) == 0, func() { w.detach(v) })
	may(2, len(v.pods) > 0, func() { w.repeat(v) })
	may(4, slices.Contains(v.pods, "a") && w.c.has(kernelView), func() { w.write(v) })
	may(4, len(v.pods) > 0 && w.c.has(kernelView), func() { w.compare(v) })
	may(2, len(v.pods) == 1 && v.pods[0] == "a" && !v.isBlock() && w.c.run.readWriteOnce() == csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, func() { w.publish(v, "ro") })
	may(2, len(v.pods) > 0, func() { w.unpublish(v, pick(w, v.pods)) })
	may(3, len(v.pods) > 0 || v.staged, func() { w.down(v) })
	may(2, w.c.has(expandVolume) && v.size < 2*w.c.run.cfg.Size, func() { w.expand(v) })
	may(1, w.c.has(modifyVolume) && len(w.c.run.cfg.MutableParameters) > 0, func() { w.modify(v) })
	may(3, w.c.has(createSnapshot) && len(w.snapshots) < mostSnapshots, func() { w.snapshot(v) })
	may(1, !v.modified, func() { w.createAgain(v) })
	may(1, true, func() { w.verifyVolume(v) })
	may(2, idle, func() { w.delete(v) })
	may(3, idle && len(w.volumes) == mostVolumes, func() { w.delete(v) })
}

func pick[T any](w *worker, all []T) T { return all[w.random.IntN(len(all))] }

// create makes a volume: a new one, or of a source with what that holds.
func (w *worker) create(source *csi.VolumeContentSource, of *snap, also ...codes.Code) *subject {
	req := w.c.createRequest()
	if w.c.has(mountAccess) && w.c.has(blockAccess) && w.random.IntN(3) == 0 {
		block(w.c, req)
	}
	v := &subject{data: &past{}}
	if w.c.has(volumeTopology) && w.c.has(secondTopology) && w.random.IntN(5) == 0 {
		v.elsewhere = true
	}
	if w.c.has(modifyVolume) && len(w.c.run.cfg.MutableParameters) > 0 && w.random.IntN(3) == 0 {
		w.c.mutated(w.c, req)
	}
	if of != nil {
		req.VolumeContentSource = source
		req.VolumeCapabilities = []*csi.VolumeCapability{of.source.capability()}
		req.CapacityRange.RequiredBytes = of.made.GetSizeBytes()
		if of.made.GetSizeBytes() < 2*w.c.run.cfg.Size && w.random.IntN(3) == 0 {
			req.CapacityRange.RequiredBytes += int64(1+w.random.IntN(4)) * mib
		}
		v.elsewhere, v.data, v.source = of.source.elsewhere, of.data, sourceID(source)
	}
	if v.elsewhere {
		there := &csi.Topology{Segments: w.c.run.target.SecondTopology}
		req.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{there}, Preferred: []*csi.Topology{there}}
	}
	a := again(w, w.c.Controller.CreateVolume, req, also...)
	if a.Err != nil {
		return nil
	}
	v.volume = w.c.volumeOf(req, a.Resp.GetVolume())
	v.size = max(a.Resp.GetVolume().GetCapacityBytes(), req.GetCapacityRange().GetRequiredBytes())
	if of == nil && v.isBlock() {
		v.data.any = true
	}
	w.volumes = append(w.volumes, v)
	return v
}

func sourceID(s *csi.VolumeContentSource) string {
	return s.GetSnapshot().GetSnapshotId() + s.GetVolume().GetVolumeId()
}

func (w *worker) restore(s *snap) { w.create(snapshotSource(s.made.GetSnapshotId()), s) }

// clone creates a volume from another one, which may be refused while that is in use.
func (w *worker) clone(v *subject) {
	of := &snap{made: &csi.Snapshot{SizeBytes: v.size}, source: v}
	var also []codes.Code
	if !v.idle() {
		also = append(also, codes.FailedPrecondition)
	}
	w.during(func(pasts []*past) {
		of.data = pasts[0]
		w.create(volumeSource(v.id), of, also...)
	}, v)
}

func (v *subject) idle() bool { return !v.attached && !v.staged && len(v.pods) == 0 }

// during lets f take snapshots of the volumes while those in use are written: all of them by
// turns, each write on the disk before the next. f gets what the snapshots will hold.
func (w *worker) during(f func([]*past), volumes ...*subject) {
	pasts := make([]*past, len(volumes))
	m := &pointInTime{to: int(^uint(0) >> 1)}
	type turn struct{ volume, slot int }
	var turns []turn
	for i, v := range volumes {
		pasts[i] = v.data
		if w.c.has(kernelView) && slices.Contains(v.pods, "a") && v.data.settled() {
			pasts[i] = &past{base: v.data.base, point: m}
			for range 24 {
				turns = append(turns, turn{i, w.random.IntN(slots)})
			}
		}
	}
	if len(turns) == 0 {
		f(pasts)
		return
	}
	w.random.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
	first := w.writes
	w.writes += len(turns)
	after := make([]content, len(volumes))
	for i, v := range volumes {
		after[i] = v.data.base
	}
	lists := make([][]write, len(volumes))
	var enough atomic.Bool
	done := make(chan error, 1)
	go func() {
		for i, t := range turns {
			if enough.Load() {
				break
			}
			v := volumes[t.volume]
			data := w.bytes(first + i)
			if err := v.writeSlot(v.targetPath("a"), t.slot, data); err != nil {
				done <- err
				return
			}
			lists[t.volume] = append(lists[t.volume], write{at: i + 1, slot: t.slot, sum: sumOf(data)})
			after[t.volume][t.slot] = sumOf(data)
			time.Sleep(time.Millisecond) // a load, not a flood
		}
		done <- nil
	}()
	defer func() {
		enough.Store(true)
		w.c.soon("a volume that can be written during a snapshot", func() error { return <-done })
		for i, v := range volumes {
			if pasts[i] != v.data { // it was written
				pasts[i].writes = lists[i]
				v.data = &past{base: after[i]}
			}
		}
	}()
	f(pasts)
}

// bytes are those of a write.
func (w *worker) bytes(n int) []byte {
	return bytesOf(fmt.Sprintf("%d %d %d", w.Seed, w.n, n), slotSize)
}

func (w *worker) write(v *subject) {
	if !v.data.settled() {
		w.compare(v)
	}
	slot := w.random.IntN(slots)
	w.writes++
	data := w.bytes(w.writes - 1)
	w.c.soon("a volume that can be written", func() error { return v.writeSlot(v.targetPath("a"), slot, data) })
	now := v.data.base
	now[slot] = sumOf(data)
	v.data = &past{base: now}
}

// compare reads the volume through one of its pods.
func (w *worker) compare(v *subject) {
	pod := pick(w, v.pods)
	var got content
	w.c.soon("a volume that can be read", func() (err error) { got, err = v.readSlots(v.targetPath(pod)); return err })
	if !v.data.settle(got) {
		w.c.fail(fmt.Sprintf("what was made durable in volume %s (made of %q)", v.id, v.source), "other data:%s%s", v.data.differs(got), w.c.history(v.id))
	}
	if pod == "ro" && !v.isBlock() {
		w.c.refusesWrites(v.targetPath(pod))
	}
	w.checks.Add(1)
}

func (w *worker) attach(v *subject) {
	if w.c.has(attachVolume) && !v.attached {
		req := v.attachRequest()
		req.Readonly = v.readOnly
		v.publishContext = again(w, w.c.Controller.ControllerPublishVolume, req).Resp.GetPublishContext()
		v.attached = true
	}
}

func (w *worker) detach(v *subject) {
	if w.c.has(attachVolume) && v.attached {
		req := v.detachRequest()
		if w.random.IntN(4) == 0 {
			req.NodeId = ""
		}
		again(w, w.c.Controller.ControllerUnpublishVolume, req)
		v.attached, v.readOnly = false, false
	}
}

func (w *worker) stage(v *subject) {
	if w.c.has(stageVolume) && !v.staged {
		again(w, w.c.Node.NodeStageVolume, v.stageRequest())
		v.staged = true
	}
}

func (w *worker) publish(v *subject, pod string) {
	again(w, w.c.Node.NodePublishVolume, w.publishRequest(v, pod))
	v.pods = append(v.pods, pod)
	v.used = true
	if !w.c.has(kernelView) {
		return
	}
	d := w.c.deviceBelow(v.targetPath(pod))
	w.mu.Lock()
	w.devices[d] = true
	w.mu.Unlock()
	if !v.data.settled() {
		w.compare(v)
	}
}

func (w *worker) publishRequest(v *subject, pod string) *csi.NodePublishVolumeRequest {
	req := v.volume.publishRequest(pod)
	req.Readonly = pod == "ro"
	return req
}

func (w *worker) unpublish(v *subject, pod string) {
	again(w, w.c.Node.NodeUnpublishVolume, v.unpublishRequest(pod))
	v.pods = slices.DeleteFunc(v.pods, func(p string) bool { return p == pod })
}

// up is what it takes until a pod has the volume, and what kubelet does when it has grown.
func (w *worker) up(v *subject) {
	w.attach(v)
	w.stage(v)
	w.publish(v, "a")
	if v.grown {
		w.growOnNode(v)
	}
}

func (w *worker) down(v *subject) {
	for len(v.pods) > 0 {
		w.unpublish(v, v.pods[0])
	}
	if v.staged {
		again(w, w.c.Node.NodeUnstageVolume, v.unstageRequest())
		v.staged = false
	}
	if w.random.IntN(4) > 0 {
		w.detach(v)
	}
}

// bottom is down to the last.
func (w *worker) bottom(v *subject) {
	w.down(v)
	w.detach(v)
}

// visitReadOnly has the volume attached and published read-only for once.
func (w *worker) visitReadOnly(v *subject) {
	v.readOnly = w.random.IntN(2) == 0
	w.attach(v)
	w.stage(v)
	w.publish(v, "ro")
	if w.c.has(kernelView) {
		w.compare(v)
	}
	w.bottom(v)
}

// visitElsewhere has another node attach the volume for once.
func (w *worker) visitElsewhere(v *subject) {
	here := v.node
	v.node = w.c.run.target.SecondNode
	w.attach(v)
	w.detach(v)
	v.node = here
}

// fenced: another node does not get a volume that this one has.
func (w *worker) fenced(v *subject) {
	req := v.attachRequest()
	req.NodeId = w.c.run.target.SecondNode
	if a := again(w, w.c.Controller.ControllerPublishVolume, req, codes.FailedPrecondition); a.Err == nil {
		a.wrong("FAILED_PRECONDITION: the volume is published to %s", v.node)
	}
}

// repeat is what kubelet does after its restart, and external-attacher after its own.
func (w *worker) repeat(v *subject) {
	if v.attached {
		req := v.attachRequest()
		req.Readonly = v.readOnly
		again(w, w.c.Controller.ControllerPublishVolume, req)
	}
	if v.staged {
		again(w, w.c.Node.NodeStageVolume, v.stageRequest())
	}
	for _, pod := range v.pods {
		again(w, w.c.Node.NodePublishVolume, w.publishRequest(v, pod))
	}
}

func (w *worker) expand(v *subject) {
	want := v.size + int64(1+w.random.IntN(4))*mib
	a := again(w, w.c.Controller.ControllerExpandVolume, v.expandRequest(want))
	if got := a.Resp.GetCapacityBytes(); got < want {
		a.wrong("capacity_bytes of %d at least", want)
	}
	v.size, v.grown = a.Resp.GetCapacityBytes(), a.Resp.GetNodeExpansionRequired()
	if v.grown && slices.Contains(v.pods, "a") {
		w.growOnNode(v)
	}
}

// growOnNode: a driver that cannot while the volume is in use does it at the next stage.
func (w *worker) growOnNode(v *subject) {
	v.grown = false
	if !w.c.has(nodeExpandVolume) {
		return
	}
	a := again(w, w.c.Node.NodeExpandVolume, v.nodeExpandRequest("a", v.size), codes.FailedPrecondition)
	if a.Err != nil || !v.isBlock() || !w.c.has(kernelView) {
		return
	}
	if got, err := deviceSize(v.targetPath("a")); err != nil || got < v.size {
		a.wrong("a device of %d bytes afterwards; it has %d, %v", v.size, got, err)
	}
}

func (w *worker) modify(v *subject) {
	p := maps.Clone(w.c.run.cfg.MutableParameters)
	if keys := slices.Sorted(maps.Keys(p)); w.random.IntN(2) == 0 { // one of them
		key := pick(w, keys)
		p = map[string]string{key: p[key]}
	}
	again(w, w.c.Controller.ControllerModifyVolume, v.modifyRequest(p))
	v.modified = true
}

func (w *worker) createAgain(v *subject) {
	if a := again(w, w.c.Controller.CreateVolume, v.made); a.Resp.GetVolume().GetVolumeId() != v.id {
		a.wrong("volume_id %q, as before%s", v.id, w.c.history(v.id))
	}
}

func (w *worker) snapshot(v *subject) {
	req := v.snapshotRequest()
	var also []codes.Code
	if !v.idle() {
		also = append(also, codes.FailedPrecondition)
	}
	w.during(func(pasts []*past) {
		for {
			a := again(w, w.c.Controller.CreateSnapshot, req, also...)
			if a.Err != nil {
				return
			}
			if a.Resp.GetSnapshot().GetReadyToUse() {
				w.snapshots = append(w.snapshots, &snap{made: withSize(a.Resp.GetSnapshot(), v), req: req, source: v, data: pasts[0]})
				return
			}
			w.wait(a.Call)
		}
	}, v)
}

// withSize fills in what a driver need not return.
func withSize(s *csi.Snapshot, v *subject) *csi.Snapshot {
	if s.GetSizeBytes() == 0 {
		s = proto.CloneOf(s)
		s.SizeBytes = v.size
	}
	return s
}

// wait is for what is not yet ready.
func (w *worker) wait(call *Call) {
	select {
	case <-w.c.ctx.Done():
		w.c.breach(call, "ready_to_use within the time", call.responseText())
		panic(stop{})
	case <-time.After(50 * time.Millisecond):
	}
}

func (w *worker) cutGroup() {
	volumes := slices.Clone(w.volumes)
	w.random.Shuffle(len(volumes), func(i, j int) { volumes[i], volumes[j] = volumes[j], volumes[i] })
	volumes = volumes[:2+w.random.IntN(len(volumes)-1)]
	req := &csi.CreateVolumeGroupSnapshotRequest{Name: w.c.name()}
	var also []codes.Code
	for _, v := range volumes {
		req.SourceVolumeIds = append(req.SourceVolumeIds, v.id)
		if !v.idle() {
			also = []codes.Code{codes.FailedPrecondition}
		}
	}
	w.during(func(pasts []*past) {
		for {
			a := again(w, w.c.Group.CreateVolumeGroupSnapshot, req, also...)
			if a.Err != nil {
				return
			}
			g := a.Resp.GetGroupSnapshot()
			if !g.GetReadyToUse() {
				w.wait(a.Call)
				continue
			}
			group := &groupSnap{made: g, req: req}
			for i, v := range volumes {
				s := memberOf(g, v.id)
				if s == nil || len(g.GetSnapshots()) != len(volumes) {
					a.wrong("one snapshot of each of %v", req.GetSourceVolumeIds())
				}
				group.snaps = append(group.snaps, &snap{made: withSize(s, v), source: v, data: pasts[i]})
			}
			w.groups = append(w.groups, group)
			return
		}
	}, volumes...)
}

// dependents reports whether something was created from it, and the driver may refuse to delete
// it.
func (w *worker) dependents(ids ...string) (also []codes.Code) {
	for _, v := range w.volumes {
		if slices.Contains(ids, v.source) {
			return []codes.Code{codes.FailedPrecondition}
		}
	}
	for _, s := range w.snaps() {
		if slices.Contains(ids, s.made.GetSourceVolumeId()) {
			return []codes.Code{codes.FailedPrecondition}
		}
	}
	return nil
}

func (w *worker) delete(v *subject) bool {
	if a := again(w, w.c.Controller.DeleteVolume, v.deleteRequest(), w.dependents(v.id)...); a.Err != nil {
		return false
	}
	w.volumes = slices.DeleteFunc(w.volumes, func(o *subject) bool { return o == v })
	w.gone = append(w.gone[max(0, len(w.gone)-7):], v.id)
	w.lives.Add(1)
	return true
}

func (w *worker) deleteSnapshot(s *snap) bool {
	id := s.made.GetSnapshotId()
	if a := again(w, w.c.Controller.DeleteSnapshot, &csi.DeleteSnapshotRequest{SnapshotId: id}, w.dependents(id)...); a.Err != nil {
		return false
	}
	w.snapshots = slices.DeleteFunc(w.snapshots, func(o *snap) bool { return o == s })
	return true
}

func (w *worker) deleteGroup(g *groupSnap) bool {
	if a := again(w, w.c.Group.DeleteVolumeGroupSnapshot, deleteGroupRequest(g.made), w.dependents(members(g.made)...)...); a.Err != nil {
		return false
	}
	w.groups = slices.DeleteFunc(w.groups, func(o *groupSnap) bool { return o == g })
	return true
}
