package nodeops

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/csikit/csikit/internal/mountapi"
	"github.com/csikit/csikit/internal/probe"
	"golang.org/x/sys/unix"
)

const blkidTimeout = 30 * time.Second

func (n *Node) stageFilesystem(r FilesystemStage, opts mountapi.Options) (err error) {
	dev, err := n.awaitDevice(r.Device)
	if err != nil {
		return err
	}
	defer dev.close()
	target, err := resolveTarget(r.StagingTargetPath)
	if err != nil {
		return err
	}
	table, err := readTable()
	if err != nil {
		return err
	}
	readOnly := opts.Attr&mountapi.ReadOnly != 0
	want := wanted{dev.major, dev.minor, "/", r.FSType, opts.Attr}
	if on := table.at(target); len(on) > 0 {
		if m := on[len(on)-1]; !readOnly && want.sameDevice(m) && m.SuperReadOnly() && !m.MountReadOnly() {
			return faultf(KindUncertain, "the file system went read-only after an error: unstage the volume, or repair the device")
		}
		if diff := want.compare(on); len(diff) > 0 {
			return conflict("something else is staged there", diff)
		}
		// An earlier call may have ended before it. A final code would make the CO
		// forget the mount, which stays.
		if err := n.finishStage(r, target, dev, readOnly); err != nil {
			return &fault{kind: KindUncertain, err: err}
		}
		return nil
	}
	// After a reboot, a stale /dev/disk/by-id link has given one device to two
	// volumes (hetznercloud/csi-driver#1455).
	if others := table.elsewhere(mountapi.Mount{Major: dev.major, Minor: dev.minor}, target); len(others) > 0 {
		return faultf(KindPrecondition, "%s is mounted at %s already: it is another volume's device, or this volume was unmounted by hand while it was in use", dev.path, paths(others))
	}
	if others := table.nodes(dev); len(others) > 0 {
		return faultf(KindPrecondition, "%s is published as a raw block device at %s", dev.path, paths(others))
	}
	if err := n.prepare(r, dev, readOnly); err != nil {
		return err
	}
	if err := mountDevice(dev, target, r.FSType, opts); err != nil {
		return err
	}
	if err := n.finishStage(r, target, dev, readOnly); err != nil {
		if undo := unmountAll(target); undo != nil {
			return faultf(KindUncertain, "%w; and the mount stays: %w", err, undo)
		}
		return err
	}
	return nil
}

// mountDevice mounts the device's file system on target, or nothing.
func mountDevice(dev *device, target, fsType string, opts mountapi.Options) error {
	opts.Data = append(slices.Clone(filesystems[fsType].data), opts.Data...)
	tree, err := mountapi.NewTree(fsType, dev.path, opts)
	if err != nil {
		return mountFault(err)
	}
	defer tree.Close() // before anything is undone: it keeps the mount busy
	// The path was resolved to a device twice, by us and by the kernel.
	root, err := tree.Root()
	if err != nil {
		return err
	}
	if root.Major != dev.major || root.Minor != dev.minor {
		return faultf(KindPrecondition, "%s became another device while it was mounted", dev.path)
	}
	return tree.Attach(target)
}

// finishStage does what can be done only to a mounted file system. ext4 was
// grown before, if it could be: a volume that is in use must not fail to stage
// because it could not.
func (n *Node) finishStage(r FilesystemStage, target string, dev *device, readOnly bool) error {
	if readOnly {
		return nil
	}
	if r.FSType != "ext4" {
		if err := n.growMounted(r.FSType, target, dev); err != nil {
			return err
		}
	}
	return giveToGroup(target, r.MountGroup)
}

// giveToGroup lets the group write to the root of the file system. What is so
// already is left alone: a chmod or chown would make kubelet walk the whole volume
// again (its policy OnRootMismatch looks at the root).
func giveToGroup(target, group string) error {
	gid, err := parseGroup(group)
	if err != nil || gid < 0 {
		return err
	}
	root, err := os.OpenFile(target, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer root.Close()
	fd := int(root.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "fstat", Path: target, Err: err}
	}
	if int(st.Gid) != gid {
		if err := unix.Fchown(fd, -1, gid); err != nil {
			return &os.PathError{Op: "fchown", Path: target, Err: err}
		}
		st.Mode &^= unix.S_ISGID // chown may have taken it
	}
	const groupWrites = unix.S_ISGID | unix.S_IRWXG
	if st.Mode&groupWrites != groupWrites {
		if err := unix.Fchmod(fd, st.Mode&0o7777|groupWrites); err != nil {
			return &os.PathError{Op: "fchmod", Path: target, Err: err}
		}
	}
	return nil
}

// prepare makes the device hold a file system that can be mounted. Who holds the
// device while we look is either a mount, then it can be mounted once more, or a
// program, then the kernel refuses the mount.
func (n *Node) prepare(r FilesystemStage, dev *device, readOnly bool) error {
	release, busy := dev.hold()
	if busy == nil {
		defer release()
	}
	found, err := dev.probe()
	if err != nil {
		return err
	}
	if busy != nil && (found.Kind != probe.Filesystem || found.Type != r.FSType || !found.Clean) {
		return busy
	}
	if found.Kind == probe.Blank {
		switch {
		case r.MustHoldData:
			return faultf(KindPrecondition, "%s is blank, but the volume was made from data: it may be the wrong device, or its copy failed", dev.path)
		case readOnly:
			return faultf(KindPrecondition, "%s is blank and is to be mounted read-only: stage the volume read-write once", dev.path)
		}
		return n.format(r, dev, release)
	}
	if found.Kind != probe.Filesystem {
		return faultf(KindPrecondition, "%s holds %v; it is formatted only when it is blank: if nobody needs that data, wipe the device and try again", dev.path, found)
	}
	if found.Type != r.FSType {
		return faultf(KindPrecondition, "%s holds a %v, the volume is to have %s: use that type, or wipe the device if nobody needs its data", dev.path, found, r.FSType)
	}
	if found.Size > dev.size {
		return faultf(KindPrecondition, "%s has %d bytes but holds a %v: the device is too small for it", dev.path, dev.size, found)
	}
	if r.FSType == "xfs" && !found.Clean {
		return faultf(KindPrecondition, "%s holds an xfs whose mkfs did not come to its end: wipe the device if nobody needs its data", dev.path)
	}
	if r.FSType != "ext4" || readOnly || busy != nil || (found.Clean && found.Full) {
		return nil
	}
	return n.checkAndGrowExt(dev, found, release)
}

// format makes a file system on a device that was found blank while it was
// held, if blkid finds it blank as well.
func (n *Node) format(r FilesystemStage, dev *device, release func()) error {
	if err := n.secondOpinion(dev); err != nil {
		return err
	}
	fs := filesystems[r.FSType]
	args := slices.Clone(fs.mkfs[1:])
	if r.Prezeroed {
		args = append(args, fs.prezeroed...)
	}
	args = append(args, dev.path)
	n.log.Warn("formatting a blank device", "volume_id", r.VolumeID, "device", dev.path, "fs_type", r.FSType, "bytes", dev.size)
	release() // mkfs takes the device exclusively itself: of two, one fails without writing
	status, output, err := n.command(0, fs.mkfs[0], args...)
	if err != nil {
		return err
	}
	if status != 0 {
		return faultf(KindUncertain, "%s on %s exited with status %d: %s", fs.mkfs[0], dev.path, status, output)
	}
	found, err := dev.probe()
	if err != nil {
		return err
	}
	if found.Kind != probe.Filesystem || found.Type != r.FSType {
		return faultf(KindUncertain, "%s on %s reported success, but the device holds %v", fs.mkfs[0], dev.path, found)
	}
	return nil
}

// secondOpinion asks blkid, which knows more signatures than we do.
func (n *Node) secondOpinion(dev *device) error {
	status, output, err := n.command(blkidTimeout, "blkid", "-p", "-o", "export", dev.path)
	if err != nil {
		return err
	}
	// blkid(8): 2 is "nothing found", and also "cannot read"; that we can read was seen.
	if status != 2 {
		return faultf(KindPrecondition, "%s reads as blank, but blkid (exit status %d) says: %s", dev.path, status, output)
	}
	return nil
}

// checkAndGrowExt checks an ext4 that records errors, and grows one that is
// smaller than its device: offline, where it needs no CAP_SYS_RESOURCE.
//
// e2fsck on a mounted file system would destroy it. That the device could be held
// says that no namespace has it mounted; e2fsck then takes it exclusively itself.
func (n *Node) checkAndGrowExt(dev *device, found probe.Result, release func()) error {
	release()
	args := []string{"-p", dev.path}
	if !found.Full {
		args = []string{"-f", "-p", dev.path} // resize2fs insists on a full check
	}
	status, output, err := n.command(0, "e2fsck", args...)
	if err != nil {
		return err
	}
	// e2fsck(8): a bit mask; 1 and 2 say that errors were corrected.
	if status&^3 != 0 {
		return faultf(KindPrecondition, "e2fsck -p cannot repair %s (exit status %d); run e2fsck by hand: %s", dev.path, status, output)
	}
	if found.Full {
		return nil
	}
	status, output, err = n.command(0, "resize2fs", dev.path)
	if err != nil {
		return err
	}
	if status != 0 {
		return faultf(KindUncertain, "resize2fs %s exited with status %d: %s", dev.path, status, output)
	}
	return nil
}

func (n *Node) unstage(stagingTargetPath string) error {
	target, err := mountapi.Resolve(stagingTargetPath)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	table, err := readTable()
	if err != nil {
		return err
	}
	on := table.at(target)
	if len(on) == 0 {
		return nil
	}
	for _, m := range on {
		if others := table.elsewhere(m, target); len(others) > 0 {
			return faultf(KindPrecondition, "the volume is still published at %s: unpublish it first", paths(others))
		}
	}
	if err := unmountAll(target); err != nil {
		return err
	}
	// EINVAL, which ends unmountAll, is also the answer for a mount that this
	// namespace may not take down.
	if table, err = readTable(); err != nil {
		return err
	}
	if on := table.at(target); len(on) > 0 {
		return faultf(KindUncertain, "still mounted: %s", on[len(on)-1].Source)
	}
	return nil
}

func mountFault(err error) error {
	switch {
	case errors.Is(err, mountapi.ErrOption):
		return &fault{kind: KindInvalid, err: fmt.Errorf("mount: %w", err)}
	case errors.Is(err, unix.EBUSY):
		return &fault{kind: KindBusy, err: fmt.Errorf("mount: %w", err)}
	case errors.Is(err, unix.EINVAL):
		return &fault{kind: KindPrecondition, err: fmt.Errorf("mount: %w", err)}
	}
	return fmt.Errorf("mount: %w", err)
}

func unmountFault(target string, err error) error {
	if errors.Is(err, unix.EBUSY) {
		who := "a process, perhaps in another mount namespace,"
		if pids := users(target); len(pids) > 0 {
			who = "process " + strings.Join(pids, ", ")
		}
		return faultf(KindBusy, "%s still uses it: %w", who, err)
	}
	return &fault{kind: KindUncertain, err: err}
}
