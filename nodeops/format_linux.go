package nodeops

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/blockdev"
	"github.com/csikit/csikit/internal/mark"
	"github.com/csikit/csikit/internal/probe"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// format creates a file system on a device that was found blank while it was held, or with
// data of an unknown kind that is not the volume's, in both cases by blkid too; or that holds
// an interrupted mkfs of such a device.
func (n *Node) format(ctx context.Context, r StageFilesystemRequest, dev *device, found contents, release func()) error {
	interrupted := found.mark.Interrupted(found.Result, r.FSType)
	if !interrupted && found.blkid != nil {
		return found.blkid
	}
	fs := filesystems[r.FSType]
	without, err := n.compatFeatureArgs(ctx, fs, r.OldestKernel)
	if err != nil {
		return err
	}
	done, err := n.formatSlot(ctx)
	if err != nil {
		return err
	}
	defer done()

	claim, err := dev.claim(ctx)
	if err != nil {
		return err
	}
	defer claim.Close()
	m := mark.New(r.VolumeID, r.FSType, dev.size)
	if err := dev.writeMark(m); err != nil {
		return &fault{kind: csierr.Uncertain, err: err}
	}
	args := append(slices.Clone(fs.mkfs[1:]), without...)
	switch {
	case found.Kind != probe.Blank:
		args = append(args, fs.notBlank...)
	case r.Prezeroed:
		args = append(args, fs.prezeroed...)
	}
	args = append(args, dev.path)
	n.log.Warn("formatting a blank device", "volume_id", r.VolumeID, "device", dev.path, "fs_type", r.FSType, "bytes", dev.size,
		"after_interruption", interrupted, "never_used", r.NeverUsed)
	n.telemetry.formats.Add(context.WithoutCancel(ctx), 1, metric.WithAttributes(
		attribute.String("fs_type", r.FSType), attribute.Bool("after_interruption", interrupted)))
	release() // mkfs opens the device exclusively itself: of two concurrent ones, one fails without writing
	status, output, failed := n.execute(ctx, program{name: fs.mkfs[0], args: args, input: claim})
	blockdev.CloseWithoutFork(claim.Close) // a mkfs that still runs keeps the lock
	if failed == nil && status != 0 {
		failed = faultf(csierr.Uncertain, "%s on %s exited with status %d: %s", fs.mkfs[0], dev.path, status, output)
	}
	release, err = dev.hold() // not mountable until the mark is cleared
	if err != nil {
		return &fault{kind: csierr.Uncertain, err: errors.Join(failed, err)}
	}
	defer release()
	found, err = n.probeDevice(ctx, dev, r.VolumeID, true)
	if err == nil {
		err = found.mark.CheckAttempt(m)
	}
	// After a mkfs that did not start or refused to run, the device is as it was.
	if err == nil && failed != nil && found.Kind == probe.Blank {
		if err = dev.clearMark(found.mark); err == nil {
			return failed
		}
	}
	if err == nil && failed != nil && found.Kind == probe.Filesystem && found.mark.Whole(r.FSType) {
		err = n.wipeSuperblock(ctx, dev, found)
	}
	switch {
	case failed != nil || err != nil:
		return &fault{kind: csierr.Uncertain, err: errors.Join(failed, err)}
	case found.Kind != probe.Filesystem || found.Type != r.FSType || found.Incomplete:
		return faultf(csierr.Uncertain, "%s on %s reported success, but the device holds %v", fs.mkfs[0], dev.path, found)
	case !found.mark.Whole(r.FSType) && len(found.mark.Places) > 0:
		n.log.Warn("mkfs overwrites its mark: an interrupted mkfs on such a device would not be detected", "command", args, "bytes", dev.size, "places", found.mark.Places)
	}
	return dev.clearMark(found.mark)
}

// compatFeatureArgs returns the arguments of mkfs that disable the features which the
// oldest kernel does not support.
func (n *Node) compatFeatureArgs(ctx context.Context, fs filesystem, oldestKernel string) ([]string, error) {
	if oldestKernel == "" {
		return nil, nil
	}
	kernel, err := parseKernel(oldestKernel)
	if err != nil {
		return nil, err
	}
	status, output, err := n.command(ctx, queryTimeout, fs.mkfs[0], "-V")
	if err != nil {
		return nil, err
	}
	have, ok := findVersion(output)
	if !ok || status != 0 {
		return nil, faultf(csierr.Precondition, "%s -V (exit status %d) does not print a version: %s", fs.mkfs[0], status, output)
	}
	return fs.disableArgs(kernel, have), nil
}

// formatSlot waits until fewer than Config.MaxFormats mkfs run.
func (n *Node) formatSlot(ctx context.Context) (done func(), err error) {
	if n.formats == nil {
		return func() {}, nil
	}
	select {
	case n.formats <- struct{}{}:
		return func() { <-n.formats }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for one of %d concurrent mkfs to end: %w", cap(n.formats), ctx.Err())
	}
}

// finishFormat clears the mark on a complete file system: the call that created it was
// interrupted before it did so.
func (n *Node) finishFormat(ctx context.Context, dev *device, found contents) error {
	// After a power failure the superblock may have reached the disk before the
	// rest: mkfs.xfs does not wait between the two.
	status, output, err := n.check(ctx, dev, found)
	if err != nil {
		return err
	}
	if status != 0 {
		return faultf(csierr.Precondition, "%s holds a %v whose mkfs was interrupted, and %s finds it damaged (exit status %d); "+zeroing+": %s",
			dev.path, found, filesystems[found.Type].check[0], status, dev.path, output)
	}
	return dev.clearMark(found.mark)
}

func (n *Node) check(ctx context.Context, dev *device, found contents) (status int, output string, err error) {
	check := filesystems[found.Type].check
	return n.command(ctx, 0, check[0], append(slices.Clone(check[1:]), dev.path)...)
}

// wipeSuperblock erases the superblock of a file system whose mkfs failed, so that the next
// attempt repeats it: mkfs.xfs writes a complete superblock even after another write has
// failed, and only its exit status shows that.
func (n *Node) wipeSuperblock(ctx context.Context, dev *device, found contents) error {
	status, _, err := n.check(ctx, dev, found)
	if err != nil || status == 0 { // sound: it failed after its last write
		return err
	}
	// The superblock of btrfs is at 64 KiB, those of the others within the first block.
	zeros := make([]byte, mark.Size)
	return dev.shared().WriteBlocks(map[int64][]byte{0: zeros, 64 << 10: zeros})
}
