package nodeops

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/mark"
	"github.com/csikit/csikit/internal/probe"
)

const queryTimeout = 30 * time.Second // for a program that only reads

// zeroing is the advice for a device whose data is not needed: erasing only signatures
// would leave a device that is not blank.
const zeroing = "if that data is not needed, zero the device (blkdiscard -z %s) and try again"

// prepareFilesystem is the policy of StageFilesystem for what a device holds: format it,
// finish or repeat an interrupted mkfs, check, grow, or refuse. If the device is held by a
// mount, it can be mounted again; if by a program, the kernel refuses the mount.
func (n *Node) prepareFilesystem(ctx context.Context, r StageFilesystemRequest, dev *device, readOnly bool) error {
	release, busy := dev.hold()
	if busy == nil {
		defer release()
	} else if f := (*fault)(nil); !errors.As(busy, &f) { // whether it is held is not known
		return busy
	}
	found, err := n.probeDevice(ctx, dev, r.VolumeID, busy == nil)
	if err != nil {
		return err
	}
	// A mark means that its mkfs may still be running.
	if busy != nil && (found.Kind != probe.Filesystem || found.Type != r.FSType || !found.Clean || len(found.mark.Ours) > 0) {
		return busy
	}
	interrupted := found.mark.Interrupted(found.Result, r.FSType)
	recycled := r.NeverUsed && !interrupted && found.unknown()
	if recycled && !readOnly {
		found.blkid = n.confirmBlank(ctx, dev)
	}
	if found.Kind == probe.Blank || interrupted || recycled {
		switch {
		case r.MustHoldData:
			return faultf(csierr.Precondition, "%s is blank or its mkfs was interrupted, but the volume is a copy of data: check that it is the right device, and that the copy succeeded", dev.path)
		case readOnly:
			return faultf(csierr.Precondition, "%s is blank, was never used, or its mkfs was interrupted, and a read-only volume is not formatted: stage the volume read-write once", dev.path)
		}
		return n.format(ctx, r, dev, found, release)
	}
	if found.Kind != probe.Filesystem {
		return faultf(csierr.Precondition, "%s holds %v and is formatted only if it is blank: "+zeroing, dev.path, found, dev.path)
	}
	if found.Type != r.FSType {
		return faultf(csierr.Precondition, "%s holds a %v, but %s was requested: request the type that it has; "+zeroing, dev.path, found, r.FSType, dev.path)
	}
	if found.Devices > 1 {
		return faultf(csierr.Precondition, "%s is one of the %d devices of a %v: multi-device file systems are not supported", dev.path, found.Devices, found)
	}
	if found.Size > dev.size {
		return faultf(csierr.Precondition, "%s has %d bytes, too small for the %v that it holds: expand the device", dev.path, dev.size, found)
	}
	if found.Incomplete {
		return faultf(csierr.Precondition, "%s holds a file system of type %s whose mkfs was interrupted, and nothing shows that the device was blank before: "+zeroing, dev.path, found.Type, dev.path)
	}
	if len(found.mark.Ours) > 0 && !readOnly {
		if err := n.finishFormat(ctx, dev, found); err != nil {
			return err
		}
	}
	if r.FSType != "ext4" || readOnly || busy != nil {
		return nil
	}
	// After a crash an error may be recorded in the journal only, and a mount, which replays
	// it, does not repair what is damaged.
	check := r.Fsck == FsckAlways || r.Fsck == FsckIfNeeded && (!found.Clean || found.Recovery)
	if !check && found.Full {
		return nil
	}
	return n.checkAndGrowExt(ctx, dev, found.Full, r.Fsck, release)
}

// contents is what prepareFilesystem has found on a device.
type contents struct {
	probe.Result
	mark  mark.Search
	blkid error // nil if blkid has run and finds no signature either
}

// probeDevice reads the device, with direct I/O if it is held: then no file system on this
// node has a newer state in memory. If its first bytes are blank, blkid runs concurrently.
func (n *Node) probeDevice(ctx context.Context, d *device, volumeID string, held bool) (_ contents, err error) {
	ctx, done := n.telemetry.step(ctx, "probe")
	defer func() { done(err) }()
	var r io.ReaderAt = d.file
	if held {
		disk, err := d.direct()
		if err != nil {
			return contents{}, err
		}
		defer disk.Close()
		r = disk
	}
	c := contents{blkid: errors.New("blkid did not run")}
	if c.mark, err = mark.Find(r, volumeID, d.size); err != nil {
		return contents{}, err
	}
	c.Result, err = probe.Probe(c.mark.Masked(r), d.size, func() {
		// blkid does about forty small sequential reads here.
		d.readAhead(0, 1<<20)
		d.readAhead(d.size-1<<20, 1<<20)
		c.blkid = n.confirmBlank(ctx, d)
	})
	if c.Kind == probe.Blank && c.mark.Foreign != "" {
		c.Kind = probe.Foreign
	}
	return c, err
}

// unknown reports whether the device holds data without any signature, and no mark but ours.
func (c contents) unknown() bool {
	return c.Kind == probe.Foreign && c.Type == "" && !c.mark.Another
}

func (c contents) String() string {
	if c.Kind == probe.Foreign && c.Type == "" && c.mark.Foreign != "" {
		return c.mark.Foreign
	}
	return c.Result.String()
}

// confirmBlank runs blkid, which knows more signatures than package probe. It finds none on
// data of an unknown kind either.
func (n *Node) confirmBlank(ctx context.Context, dev *device) error {
	status, output, err := n.command(ctx, queryTimeout, "blkid", "-p", "-o", "export", dev.path)
	if err != nil {
		return err
	}
	// blkid(8): 2 is "nothing found", and also "cannot read"; probe has read it.
	if status != 2 {
		return faultf(csierr.Precondition, "%s has no signature that csikit knows, but blkid (exit status %d) reports: %s", dev.path, status, output)
	}
	return nil
}

// checkAndGrowExt checks an ext4 that records errors, and grows one that is
// smaller than its device: offline, where it needs no CAP_SYS_RESOURCE.
//
// e2fsck on a mounted file system would destroy it. That the device could be held shows that
// it is mounted in no namespace; e2fsck then opens it exclusively itself.
func (n *Node) checkAndGrowExt(ctx context.Context, dev *device, full bool, policy Fsck, release func()) error {
	release()
	args := []string{"-p", dev.path}
	if !full || policy == FsckAlways { // resize2fs insists on a full check
		args = []string{"-f", "-p", dev.path}
	}
	status, output, err := n.command(ctx, 0, "e2fsck", args...)
	if err != nil {
		return err
	}
	// e2fsck(8): a bit mask; 1 and 2 say that errors were corrected.
	if status&^3 != 0 {
		return faultf(csierr.Precondition, "e2fsck -p cannot repair %s (exit status %d); run e2fsck by hand: %s", dev.path, status, output)
	}
	if full {
		return nil
	}
	status, output, err = n.command(ctx, 0, "resize2fs", dev.path)
	if err != nil {
		return err
	}
	if status == 0 {
		return nil
	}
	// That a sound file system cannot grow must not fail the staging of the volume.
	if found, err := dev.probe(); err != nil || !found.Clean {
		return faultf(csierr.Uncertain, "resize2fs %s exited with status %d: %s", dev.path, status, output)
	}
	n.log.Warn("the file system is smaller than its device and cannot be grown", "device", dev.path, "exit_status", status, "output", output)
	return nil
}
