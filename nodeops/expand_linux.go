package nodeops

import (
	"context"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/btrfs"
	"github.com/csikit/csikit/internal/mountapi"
	"github.com/csikit/csikit/internal/probe"
	"golang.org/x/sys/unix"
)

func (n *Node) expand(ctx context.Context, r ExpandRequest, path resolvedPath) (int64, error) {
	volumePath, err := path.volume()
	if err != nil {
		return 0, err
	}
	m, dev, err := openVolume(volumePath)
	if err != nil {
		return 0, err
	}
	defer dev.close()
	if dev.size < r.RequiredBytes && r.Rescan != nil {
		if err := r.Rescan(dev.path); err != nil {
			return 0, faultf(csierr.Uncertain, "rescan the size of %s: %w", dev.path, err)
		}
		if err := dev.measure(); err != nil {
			return 0, err
		}
	}
	if dev.size < r.RequiredBytes {
		return 0, faultf(csierr.Uncertain, "%s has %d bytes, %d are required: the device has not grown yet", dev.path, dev.size, r.RequiredBytes)
	}
	if isBlockNode(m, dev) {
		return dev.size, nil
	}
	return dev.size, n.growMounted(ctx, m.FSType, m.MountPoint, dev)
}

// openVolume opens the device behind what is mounted at the path.
func openVolume(volumePath string) (mountapi.Mount, *device, error) {
	m, err := mountedAt(volumePath)
	if err != nil {
		return m, nil, err
	}
	dev, err := deviceOf(m)
	return m, dev, err
}

func mountedAt(volumePath string) (mountapi.Mount, error) {
	on, err := mountapi.At(volumePath)
	if err != nil {
		return mountapi.Mount{}, err
	}
	if len(on) == 0 {
		return mountapi.Mount{}, errNotMounted
	}
	return on[len(on)-1], nil
}

// isBlockNode reports whether the mount is a published device node, not a file system.
func isBlockNode(m mountapi.Mount, dev *device) bool {
	return m.Major != dev.major || m.Minor != dev.minor
}

// growMounted grows the file system mounted at target to the size of its device, if its
// type supports that while mounted.
func (n *Node) growMounted(ctx context.Context, fsType, target string, dev *device) error {
	full, err := isFull(fsType, target, dev)
	if err != nil || full {
		return err
	}
	m, err := mountedAt(target)
	if err != nil {
		return err
	}
	if err := failure(m, dev); err != nil {
		return &fault{kind: csierr.Precondition, err: err}
	}
	if m.ReadOnly() {
		return faultf(csierr.Precondition, "mounted read-only, so it cannot grow to the %d bytes of its device: stage the volume read-write", dev.size)
	}
	switch fsType {
	case "ext4":
		if !hasSysResource() {
			return faultf(csierr.Precondition, "a mounted ext4 grows only with CAP_SYS_RESOURCE, which this process lacks; the file system grows to %d bytes when the volume is staged the next time", dev.size)
		}
		err = n.growBy(ctx, "resize2fs", dev.path)
	case "xfs":
		err = n.growXFS(ctx, target, dev)
	case "btrfs":
		if dev.size < btrfs.MinGrownSize {
			return faultf(csierr.Precondition, "the kernel grows a btrfs to %d bytes or more, the device has %d", int64(btrfs.MinGrownSize), dev.size)
		}
		err = growBtrfs(target)
	default:
		return faultf(csierr.Precondition, "growing %s is not supported", fsType)
	}
	if err != nil {
		return err
	}
	if full, err = isFull(fsType, target, dev); err == nil && !full {
		err = faultf(csierr.Uncertain, "growing reported success, but the %s on %s does not use all %d bytes", fsType, dev.path, dev.size)
	}
	return err
}

func (n *Node) growBy(ctx context.Context, name, arg string) error {
	status, output, err := n.command(ctx, 0, name, arg)
	if err == nil && status != 0 {
		err = faultf(csierr.Uncertain, "%s exited with status %d: %s", name, status, output)
	}
	return err
}

// growXFS grows the mounted xfs, if it has not grown yet, and has its superblock written:
// the kernel does that up to half a minute later, and until then the new size is only in
// the log. After a crash in that time, or in a snapshot with such a point in time, the log
// may refer to blocks behind the old end before it contains the new size, and cannot be
// replayed: by Linux 6.18 after two growths, before 6.12 (commit 6a18765b54e2) after one.
func (n *Node) growXFS(ctx context.Context, target string, dev *device) error {
	size, blockSize, err := xfsGeometry(target)
	if err == nil && !probe.XFSFull(size, blockSize, dev.size) {
		err = n.growBy(ctx, "xfs_growfs", target)
	}
	if err == nil {
		err = writeXFSSuperblock(target)
	}
	return err
}

// writeXFSSuperblock sets the label of the mounted xfs to its current value: this is the
// only call after which the kernel writes the superblock immediately (Linux 4.18), with
// all changes. It needs no freeze, which would persist if this process were killed.
func writeXFSSuperblock(target string) error {
	const (
		getLabel = 2<<30 | 256<<16 | 0x94<<8 | 49 // FS_IOC_GETFSLABEL, _IOR(0x94, 49, char[FSLABEL_MAX])
		setLabel = 1<<30 | 256<<16 | 0x94<<8 | 50 // FS_IOC_SETFSLABEL, _IOW(0x94, 50, char[FSLABEL_MAX])
	)
	dir, err := os.Open(target)
	if err != nil {
		return err
	}
	defer dir.Close()
	var label [256]byte
	for _, x := range []struct {
		name    string
		request uintptr
	}{{"FS_IOC_GETFSLABEL", getLabel}, {"FS_IOC_SETFSLABEL", setLabel}} {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), x.request, uintptr(unsafe.Pointer(&label))); errno != 0 {
			return faultf(csierr.Uncertain, "the xfs has grown, but its superblock was not written: ioctl %s on %s: %w", x.name, target, errno)
		}
	}
	return nil
}

func growBtrfs(target string) error {
	dir, err := os.Open(target)
	if err != nil {
		return err
	}
	defer dir.Close()
	info, err := btrfs.Stat(dir)
	if err == nil {
		err = info.Grow(dir)
	}
	switch {
	case errors.Is(err, btrfs.ErrBusy):
		return &fault{kind: csierr.Busy, err: err}
	case err != nil:
		return &fault{kind: csierr.Uncertain, err: err}
	}
	return nil
}

func isFull(fsType, target string, dev *device) (bool, error) {
	switch fsType {
	case "xfs":
		return xfsFull(target, dev)
	case "btrfs":
		return btrfsFull(target, dev)
	}
	// ext4 keeps its superblock in the device's page cache, where we read it.
	found, err := dev.probe()
	return found.Full, err
}

// btrfsFull queries the mounted btrfs, since its superblock on the device is not current.
func btrfsFull(target string, dev *device) (bool, error) {
	dir, err := os.Open(target)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	info, err := btrfs.Stat(dir)
	if err != nil {
		return false, err
	}
	used, err := info.DeviceSize(dir)
	return probe.BtrfsFull(used, info.SectorSize, dev.size), err
}

// xfsFull queries the mounted xfs, and checks that its superblock on the device has the
// same size.
func xfsFull(target string, dev *device) (bool, error) {
	size, blockSize, err := xfsGeometry(target)
	if err != nil || !probe.XFSFull(size, blockSize, dev.size) {
		return false, err
	}
	disk, err := dev.direct() // xfs does not write through the device's page cache
	if err != nil {
		return false, err
	}
	defer disk.Close()
	head := make([]byte, 512)
	if _, err := disk.ReadAt(head, 0); err != nil {
		return false, fmt.Errorf("read the superblock on %s: %w", dev.path, err)
	}
	return probe.XFSSize(head) == size, nil
}

// xfsGeometry queries the size of a mounted xfs, since its superblock on the device is not
// current.
func xfsGeometry(target string) (size, blockSize int64, err error) {
	dir, err := os.Open(target)
	if err != nil {
		return 0, 0, err
	}
	defer dir.Close()
	var g struct { // struct xfs_fsop_geom_v1 of xfs/libxfs/xfs_fs.h
		blocksize, rtextsize, agblocks, agcount, logblocks, sectsize, inodesize, imaxpct uint32
		datablocks, rtblocks, rtextents, logstart                                        uint64
		_                                                                                [48]byte
	}
	const fsGeometryV1 = 2<<30 | 112<<16 | 'X'<<8 | 100 // _IOR('X', 100, struct xfs_fsop_geom_v1)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), fsGeometryV1, uintptr(unsafe.Pointer(&g))); errno != 0 {
		return 0, 0, fmt.Errorf("ioctl XFS_IOC_FSGEOMETRY on %s: %w", target, errno)
	}
	return int64(g.datablocks) * int64(g.blocksize), int64(g.blocksize), nil
}

func hasSysResource() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return false
	}
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

func (n *Node) stats(path resolvedPath) (Stats, error) {
	volumePath, err := path.volume()
	if err != nil {
		return Stats{}, err
	}
	m, err := mountedAt(volumePath)
	if err != nil {
		return Stats{}, err
	}
	if node, err := os.Stat(m.MountPoint); err != nil {
		return Stats{}, err
	} else if node.Mode().Type() == os.ModeDevice {
		_, dev, err := openVolume(volumePath)
		if err != nil {
			return Stats{}, err
		}
		defer dev.close()
		return Stats{Block: true, TotalBytes: dev.size}, nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(m.MountPoint, &st); err != nil {
		return Stats{}, &os.PathError{Op: "statfs", Path: m.MountPoint, Err: err}
	}
	unit := int64(st.Frsize)
	if unit == 0 {
		unit = int64(st.Bsize)
	}
	s := Stats{
		Source:          m.Source,
		TotalBytes:      int64(st.Blocks) * unit,
		AvailableBytes:  int64(st.Bavail) * unit,
		UsedBytes:       int64(st.Blocks-st.Bfree) * unit,
		TotalInodes:     int64(st.Files),
		AvailableInodes: int64(st.Ffree),
		UsedInodes:      int64(st.Files - st.Ffree),
	}
	if _, dev, err := openVolume(volumePath); err == nil { // not for a share
		defer dev.close()
		if err := failure(m, dev); err != nil {
			s.Condition = err.Error()
		}
	}
	return s, nil
}
