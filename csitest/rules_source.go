package csitest

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// A source is one of the two kinds of what a volume can be created from.
type source struct {
	kind string // in rule ids
	noun string
	need Need
	// of makes a source with what v holds now.
	of func(v *volume) *csi.VolumeContentSource
	// remove deletes it.
	remove func(c *ruleRun, s *csi.VolumeContentSource) codes.Code
}

var sources = []source{
	{
		kind: "restore", noun: "snapshot", need: createSnapshot,
		of: func(v *volume) *csi.VolumeContentSource { return snapshotSource(v.snapshot().GetSnapshotId()) },
		remove: func(c *ruleRun, s *csi.VolumeContentSource) codes.Code {
			return send(c, c.Controller.DeleteSnapshot, &csi.DeleteSnapshotRequest{SnapshotId: s.GetSnapshot().GetSnapshotId()}).Code()
		},
	},
	{
		kind: "clone", noun: "volume", need: cloneVolume,
		of: func(v *volume) *csi.VolumeContentSource { return volumeSource(v.id) },
		remove: func(c *ruleRun, s *csi.VolumeContentSource) codes.Code {
			return send(c, c.Controller.DeleteVolume, &csi.DeleteVolumeRequest{VolumeId: s.GetVolume().GetVolumeId()}).Code()
		},
	},
}

func sized(r *csi.CapacityRange) volumeOption {
	return func(_ *ruleRun, req *csi.CreateVolumeRequest) { req.CapacityRange = r }
}

var sourceRules = func() (rules []Rule) {
	for _, s := range sources {
		rules = append(rules, s.rules()...)
	}
	return append(rules, unsupportedSources...)
}()

// ofIdle is of, when the volume was taken down from the pod: not every driver copies
// what is in use.
func (s source) ofIdle(v *volume, pod string) *csi.VolumeContentSource {
	return s.of(v.unpublish(pod).unstage().detach())
}

// rules are those of one kind of source.
func (s source) rules() []Rule {
	id := "source." + s.kind + "."
	return []Rule{
		{
			ID: id + "created", Level: Must, Spec: "CreateVolume",
			Title: "a volume is made from a " + s.noun + ", and a retry gets the same answer",
			Why:   "The driver reports that it can. A retry whose answer differs makes the CO delete the volume, or take it for an empty one.",
			Needs: needs(createVolume, s.need),
			check: func(c *ruleRun) {
				v := c.volume(from(s.of(c.volume())))
				a := send(c, c.Controller.CreateVolume, v.made)
				if got := a.ok().GetVolume(); got.GetVolumeId() != v.id || !proto.Equal(got.GetContentSource(), v.created.GetContentSource()) {
					a.wrong("volume_id and content_source as the first time: %s", requestJSON(v.created))
				}
			},
		},
		{
			ID: id + "too-small", Level: Must, Spec: "CreateVolume",
			Title: "a volume that may not be as large as its " + s.noun + " is OUT_OF_RANGE",
			Why:   "Data that does not fit is truncated, which goes unnoticed until it is read.",
			Needs: needs(createVolume, s.need),
			check: func(c *ruleRun) {
				v := c.volume()
				size := v.created.GetCapacityBytes()
				if size < 2 {
					c.excuse("CreateVolume does not return capacity_bytes")
				}
				req := c.createRequest()
				from(s.of(v))(c, req)
				sized(&csi.CapacityRange{RequiredBytes: size / 2, LimitBytes: size / 2})(c, req)
				send(c, c.Controller.CreateVolume, req).wants(codes.OutOfRange)
			},
		},
		{
			ID: id + "no-range", Level: Must, Spec: "CreateVolume",
			Title: "a volume without capacity_range is as large as its " + s.noun + " at least",
			Why:   "The plugin chooses the size, and the content has to fit.",
			Needs: needs(createVolume, s.need),
			check: func(c *ruleRun) {
				v := c.volume()
				copied := c.volume(from(s.of(v)), sized(nil)).created
				if got := copied.GetCapacityBytes(); got != 0 && got < v.created.GetCapacityBytes() {
					c.fail("capacity_bytes of the source at least", "%d, and the source has %d", got, v.created.GetCapacityBytes())
				}
			},
		},
		{
			ID: id + "larger", Level: Must, Spec: "CreateVolume",
			Title: "a volume larger than its " + s.noun + " has the requested size, or is OUT_OF_RANGE",
			Why:   "capacity_range is honoured with a source as well: the user needs the room.",
			Needs: needs(createVolume, s.need),
			check: func(c *ruleRun) {
				req := c.createRequest()
				from(s.of(c.volume()))(c, req)
				sized(&csi.CapacityRange{RequiredBytes: 2 * c.run.cfg.Size})(c, req)
				a := send(c, c.Controller.CreateVolume, req)
				a.wants(codes.OK, codes.OutOfRange)
				if got := a.Resp.GetVolume().GetCapacityBytes(); a.Err == nil && got != 0 && got < 2*c.run.cfg.Size {
					a.wrong("capacity_bytes of %d at least, or OUT_OF_RANGE", 2*c.run.cfg.Size)
				}
			},
		},
		{
			ID: id + "conflict", Level: Must, Spec: "CreateVolume",
			Title: "a name that is taken by an empty volume is ALREADY_EXISTS for one from a " + s.noun,
			Why:   "With OK the CO would get an empty volume in place of the data.",
			Needs: needs(createVolume, s.need),
			check: func(c *ruleRun) {
				v := c.volume()
				again := c.createRequest()
				again.Name = v.made.GetName()
				from(s.of(c.volume()))(c, again)
				send(c, c.Controller.CreateVolume, again).wants(codes.AlreadyExists)
			},
		},
		{
			ID: id + "source-deleted", Level: Must, Spec: "CreateVolume",
			Title: "a volume remains usable after its " + s.noun + " is deleted, or prevents the deletion",
			Why: "A copy that shares blocks with its source loses them with it. A driver whose copies need their source answers " +
				"FAILED_PRECONDITION when that is to be deleted.",
			Needs: needs(createVolume, s.need),
			check: func(c *ruleRun) {
				src := s.of(c.volume())
				v := c.volume(from(src))
				if code := s.remove(c, src); code != codes.OK && code != codes.FailedPrecondition {
					c.fail("OK or FAILED_PRECONDITION when the "+s.noun+" is deleted", "%s", code)
				}
				if a := send(c, c.Controller.CreateVolume, v.made); a.ok().GetVolume().GetVolumeId() != v.id {
					a.wrong("volume_id %q: the volume is there", v.id)
				}
				a := send(c, c.Controller.ValidateVolumeCapabilities, v.validateRequest())
				a.ok()
			},
		},
		{
			ID: id + "data", Level: Must, Spec: "CreateVolume",
			Title: "a volume from a " + s.noun + " holds its data, and nothing that was written later",
			Why:   "A restore must never return an empty volume, or one of another point in time.",
			Needs: needs(createVolume, s.need, nodeService, kernelView),
			check: func(c *ruleRun) {
				v := c.volume().up("a")
				data := v.fill("a")
				copied := c.volume(from(s.ofIdle(v, "a")))
				v.up("a").fill("a")
				copied.up("b").holds("b", data)
			},
		},
		{
			ID: id + "separate", Level: Must, Spec: "CreateVolume",
			Title: "what is written to a volume from a " + s.noun + " does not show in the source",
			Why:   "The two are independent volumes. Shared blocks have to be copied before one of them is written.",
			Needs: needs(createVolume, s.need, nodeService, kernelView),
			check: func(c *ruleRun) {
				v := c.volume().up("a")
				data := v.fill("a")
				src := s.ofIdle(v, "a")
				c.volume(from(src)).up("b").fill("b")
				v.up("a").holds("a", data)
				if s.kind == "restore" {
					c.volume(from(src)).up("c").holds("c", data)
				}
			},
		},
		{
			ID: id + "data-source-deleted", Level: Must, Spec: "CreateVolume",
			Title: "the data survives the deletion of its " + s.noun,
			Why:   "A copy that shares blocks with its source must not lose them with it.",
			Needs: needs(createVolume, s.need, nodeService, kernelView),
			check: func(c *ruleRun) {
				v := c.volume().up("a")
				data := v.fill("a")
				src := s.ofIdle(v, "a")
				copied := c.volume(from(src))
				if s.remove(c, src) != codes.OK {
					c.excuse("the %s cannot be deleted while there is a volume made from it", s.noun)
				}
				copied.up("b").holds("b", data)
			},
		},
		{
			ID: id + "data-larger", Level: Must, Spec: "CreateVolume",
			Title: "a larger volume from a " + s.noun + " shows its size and the data",
			Why:   "The file system inside has the source's size. To grow it by NodePublishVolume at the latest is the plugin's job: no NodeExpandVolume comes.",
			Needs: needs(createVolume, s.need, nodeService, volumeStats, kernelView),
			check: func(c *ruleRun) {
				v := c.volume().up("a")
				data, was := v.fill("a"), v.total("a")
				req := c.createRequest()
				from(s.ofIdle(v, "a"))(c, req)
				sized(&csi.CapacityRange{RequiredBytes: 4 * max(c.run.cfg.Size, v.created.GetCapacityBytes())})(c, req)
				a := send(c, c.Controller.CreateVolume, req)
				if a.is(codes.OutOfRange) {
					c.excuse("a volume cannot be larger than its source")
				}
				copied := c.volumeOf(req, a.ok().GetVolume()).up("b")
				copied.holds("b", data)
				// The metadata of a file system take some of it. A share has the room of a whole
				// export, whatever its own size.
				if is := copied.total("b"); is < 2*was && is < 4*c.run.cfg.Size {
					c.fail("a total of about four times the source's in NodeGetVolumeStats", "%d bytes, and %d of the source", is, was)
				}
			},
		},
	}
}

// dataSize is how much a rule writes to see it again.
const dataSize = 1 << 20

// disk is what the volume's data is written to: a file, or the device.
func (v *volume) disk(pod string) string {
	if v.isBlock() {
		return v.targetPath(pod)
	}
	return filepath.Join(v.targetPath(pod), "csicheck-data")
}

// fill writes something new, durably, and returns it.
func (v *volume) fill(pod string) []byte {
	data := make([]byte, dataSize)
	chaos := rand.NewChaCha8([32]byte([]byte(v.c.name() + "                                ")[:32]))
	_, _ = chaos.Read(data) // never fails
	f, err := v.c.run.openFile(v.disk(pod), os.O_WRONLY|os.O_CREATE, 0o644)
	if err == nil {
		_, err = f.Write(data)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		v.c.fail("a volume that can be written", "%v", err)
	}
	return data
}

// holds demands what fill has written.
func (v *volume) holds(pod string, want []byte) {
	got := make([]byte, len(want))
	f, err := os.Open(v.disk(pod))
	if err == nil {
		_, err = io.ReadFull(f, got)
		_ = f.Close() // it was read
	}
	if err != nil || !bytes.Equal(got, want) {
		at := 0
		for at < len(want) && got[at] == want[at] {
			at++
		}
		v.c.fail("the data as it was written", "volume %s: the byte at %d of %d is another one, %v", v.id, at, len(want), err)
	}
}

// total is the size that NodeGetVolumeStats returns.
func (v *volume) total(pod string) int64 {
	for _, u := range send(v.c, v.c.Node.NodeGetVolumeStats, v.statsRequest(pod)).ok().GetUsage() {
		if u.GetUnit() == csi.VolumeUsage_BYTES {
			return u.GetTotal()
		}
	}
	v.c.excuse("NodeGetVolumeStats returns no bytes")
	return 0
}

// without is the need that a capability is not there.
func without(n Need) Need {
	return Need{Text: "no " + n.Text, met: func(r *run) bool { return !n.met(r) }}
}

var unsupportedSources = []Rule{
	{
		ID: "source.restore.unsupported", Level: Must, Spec: "CreateVolume",
		Title: "a driver without snapshots refuses a volume from one: INVALID_ARGUMENT",
		Why:   "An empty volume in place of a restored one is data loss that goes unnoticed.",
		Needs: needs(createVolume, without(createSnapshot)),
		check: func(c *ruleRun) {
			req := c.createRequest()
			from(snapshotSource(c.name()))(c, req)
			send(c, c.Controller.CreateVolume, req).wants(codes.InvalidArgument, codes.NotFound)
		},
	},
	{
		ID: "source.clone.unsupported", Level: Must, Spec: "CreateVolume",
		Title: "a driver that cannot clone refuses a volume from another: INVALID_ARGUMENT",
		Why:   "An empty volume in place of a clone is data loss that goes unnoticed.",
		Needs: needs(createVolume, without(cloneVolume)),
		check: func(c *ruleRun) {
			req := c.createRequest()
			from(volumeSource(c.volume().id))(c, req)
			send(c, c.Controller.CreateVolume, req).wants(codes.InvalidArgument)
		},
	},
	{
		ID: "source.clone.reported", Level: Should, Spec: "external-provisioner",
		Title: "a clone names its source, also in the answer to a retry",
		Why:   "Kubernetes treats a volume without content_source as empty, deletes it and reports that the driver cannot clone.",
		Needs: needs(createVolume, cloneVolume),
		check: func(c *ruleRun) {
			src := c.volume()
			v := c.volume(from(volumeSource(src.id)))
			for _, got := range []*csi.Volume{v.created, send(c, c.Controller.CreateVolume, v.made).ok().GetVolume()} {
				if got.GetContentSource().GetVolume().GetVolumeId() != src.id {
					c.fail("content_source with volume "+src.id, "%s", requestJSON(got))
				}
			}
		},
	},
}
