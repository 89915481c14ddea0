package nodeops

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/csikit/csikit/internal/probe"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"golang.org/x/sys/unix"
)

const queryTimeout = 30 * time.Second // for a program that only reads

// zeroing is the advice for a device whose data is not needed: erasing only signatures
// would leave a device that is not blank.
const zeroing = "if that data is not needed, zero the device (blkdiscard -z %s) and try again"

// contents is what prepare has found on a device.
type contents struct {
	probe.Result
	mark  markSearch
	blkid error // nil if blkid has run and finds the device blank too
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
	if c.mark, err = searchMark(r, volumeID, d.size); err != nil {
		return contents{}, err
	}
	c.Result, err = probe.Probe(c.mark.masked(r), d.size, func() {
		// blkid does about forty small sequential reads here.
		d.readAhead(0, 1<<20)
		d.readAhead(d.size-1<<20, 1<<20)
		c.blkid = n.confirmBlank(ctx, d)
	})
	if c.Kind == probe.Blank && c.mark.foreign != "" {
		c.Kind = probe.Foreign
	}
	return c, err
}

func (c contents) String() string {
	if c.Kind == probe.Foreign && c.Type == "" && c.mark.foreign != "" {
		return c.mark.foreign
	}
	return c.Result.String()
}

// interrupted reports whether the device holds what an interrupted mkfs of this type
// left. The mark records that it was blank before; anything that mkfs does not write was
// written later, and is data.
func (c contents) interrupted(fsType string) bool {
	if !c.mark.whole(fsType) {
		return false
	}
	switch c.Kind {
	case probe.Filesystem:
		return c.Incomplete && c.Type == fsType
	case probe.Foreign:
		return strings.HasPrefix(fsType, c.Type) // "", or "ext" for ext4: parts of one
	}
	return false
}

// format creates a file system on a device that was found blank while it was held, by
// blkid too, or that holds an interrupted mkfs of a blank device.
func (n *Node) format(ctx context.Context, r StageFilesystemRequest, dev *device, found contents, release func()) error {
	retry := found.Kind != probe.Blank
	if !retry && found.blkid != nil {
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

	claim, err := dev.claim()
	if err != nil {
		return err
	}
	defer claim.Close()
	m := newMark(r.VolumeID, r.FSType, dev.size)
	if err := dev.writeMark(m); err != nil {
		return &fault{kind: KindUncertain, err: err}
	}
	args := append(slices.Clone(fs.mkfs[1:]), without...)
	switch {
	case retry: // the device does not read as zeros
		args = append(args, fs.retry...)
	case r.Prezeroed:
		args = append(args, fs.prezeroed...)
	}
	args = append(args, dev.path)
	n.log.Warn("formatting a blank device", "volume_id", r.VolumeID, "device", dev.path, "fs_type", r.FSType, "bytes", dev.size, "after_interruption", retry)
	n.telemetry.formats.Add(context.WithoutCancel(ctx), 1, metric.WithAttributes(
		attribute.String("fs_type", r.FSType), attribute.Bool("after_interruption", retry)))
	release() // mkfs opens the device exclusively itself: of two concurrent ones, one fails without writing
	status, output, failed := n.execute(ctx, program{name: fs.mkfs[0], args: args, input: claim})
	closeWithoutFork(claim.Close) // a mkfs that still runs keeps the lock
	if failed == nil && status != 0 {
		failed = faultf(KindUncertain, "%s on %s exited with status %d: %s", fs.mkfs[0], dev.path, status, output)
	}
	release, err = dev.hold() // not mountable until the mark is cleared
	if err != nil {
		return &fault{kind: KindUncertain, err: errors.Join(failed, err)}
	}
	defer release()
	found, err = n.probeDevice(ctx, dev, r.VolumeID, true)
	if err == nil {
		err = found.mark.checkAttempt(m)
	}
	// After a mkfs that did not start or refused to run, the device is as it was.
	if err == nil && failed != nil && found.Kind == probe.Blank {
		if err = dev.clearMark(found.mark); err == nil {
			return failed
		}
	}
	if err == nil && failed != nil && found.Kind == probe.Filesystem && found.mark.whole(r.FSType) {
		err = n.wipeSuperblock(ctx, dev, found)
	}
	switch {
	case failed != nil || err != nil:
		return &fault{kind: KindUncertain, err: errors.Join(failed, err)}
	case found.Kind != probe.Filesystem || found.Type != r.FSType || found.Incomplete:
		return faultf(KindUncertain, "%s on %s reported success, but the device holds %v", fs.mkfs[0], dev.path, found)
	case !found.mark.whole(r.FSType) && len(found.mark.places) > 0:
		n.log.Warn("mkfs overwrites its mark: an interrupted mkfs on such a device would not be detected", "command", args, "bytes", dev.size, "places", found.mark.places)
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
		return nil, faultf(KindPrecondition, "%s -V (exit status %d) does not print a version: %s", fs.mkfs[0], status, output)
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
		return faultf(KindPrecondition, "%s holds a %v whose mkfs was interrupted, and %s finds it damaged (exit status %d); "+zeroing+": %s",
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
	zeros := make([]byte, markSize)
	return dev.writeBlocks(map[int64][]byte{0: zeros, 64 << 10: zeros})
}

// confirmBlank runs blkid, which knows more signatures than package probe.
func (n *Node) confirmBlank(ctx context.Context, dev *device) error {
	status, output, err := n.command(ctx, queryTimeout, "blkid", "-p", "-o", "export", dev.path)
	if err != nil {
		return err
	}
	// blkid(8): 2 is "nothing found", and also "cannot read"; probe has read it.
	if status != 2 {
		return faultf(KindPrecondition, "%s reads as blank, but blkid (exit status %d) reports: %s", dev.path, status, output)
	}
	return nil
}

// writeMark writes the mark in all its places, and reads it back from the disk.
func (d *device) writeMark(m mark) error {
	places := markPlaces(d.size)
	blocks := make(map[int64][]byte, len(places))
	for _, place := range places {
		blocks[place] = m.encode(place)
	}
	if err := d.writeBlocks(blocks); err != nil {
		return fmt.Errorf("write the mark of mkfs to %s: %w", d.path, err)
	}
	return d.compareBlocks(blocks)
}

// clearMark overwrites the mark with zeros, if it is still the one that was found. All
// earlier writes to the device are durable then.
func (d *device) clearMark(s markSearch) error {
	if err := d.compareBlocks(s.ours); err != nil {
		return &fault{kind: KindUncertain, err: err}
	}
	zeros := make(map[int64][]byte, len(s.ours))
	for place := range s.ours {
		zeros[place] = make([]byte, markSize)
	}
	err := d.file.Sync() // what mkfs wrote
	if err == nil {
		err = d.writeBlocks(zeros)
	}
	if err != nil {
		return faultf(KindUncertain, "clear the mark of mkfs on %s: %w", d.path, err)
	}
	return nil
}

// writeBlocks writes the blocks and makes them durable.
func (d *device) writeBlocks(blocks map[int64][]byte) error {
	f, err := d.reopen(unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	for place, block := range blocks {
		if _, err := f.WriteAt(block, place); err != nil {
			return err
		}
	}
	return f.Sync()
}

func (d *device) compareBlocks(blocks map[int64][]byte) error {
	disk, err := d.direct()
	if err != nil {
		return err
	}
	defer disk.Close()
	for place, want := range blocks {
		have := make([]byte, len(want))
		if _, err := disk.ReadAt(have, place); err != nil {
			return fmt.Errorf("read back the mark of mkfs on %s: %w", d.path, err)
		}
		if !bytes.Equal(have, want) {
			return fmt.Errorf("%s does not hold at byte %d what was written there: check that no other node writes to it", d.path, place)
		}
	}
	return nil
}

// disk reads a device with direct I/O.
type disk struct {
	*os.File
	aligned io.ReaderAt
	cached  *os.File
}

func (d disk) ReadAt(p []byte, off int64) (int, error) {
	n, err := d.aligned.ReadAt(p, off)
	if errors.Is(err, unix.EINVAL) { // direct I/O is not possible here; the page cache may be
		return d.cached.ReadAt(p, off)
	}
	return n, err
}

func (d *device) direct() (disk, error) {
	f, err := d.reopen(unix.O_RDONLY | unix.O_DIRECT)
	if errors.Is(err, unix.EINVAL) {
		f, err = d.reopen(unix.O_RDONLY)
	}
	if err != nil {
		return disk{}, err
	}
	block, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKSSZGET)
	if err != nil {
		f.Close()
		return disk{}, os.NewSyscallError("ioctl BLKSSZGET", err)
	}
	return disk{f, probe.Aligned(f, d.size, int64(block)), d.file}, nil
}

// readAhead starts reading into the page cache, without waiting.
func (d *device) readAhead(off, n int64) {
	_ = unix.Fadvise(int(d.file.Fd()), max(off, 0), n, unix.FADV_WILLNEED) // advice may fail
}

// reopen opens the same device again, even if its path leads elsewhere now.
func (d *device) reopen(flags int) (*os.File, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", d.file.Fd()), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: d.path, Err: err}
	}
	return os.NewFile(uintptr(fd), d.path), nil
}
