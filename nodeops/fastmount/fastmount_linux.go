package fastmount

import (
	"errors"
	"sync"
	"time"

	"github.com/csikit/csikit/nodeops/fastmount/internal/mountapi"
	mount "k8s.io/mount-utils"
)

// New returns a mounter that runs no program for the operations that the package
// documentation lists. It implements mount.MounterForceUnmounter as well.
func New(opts ...Option) mount.Interface {
	var c config
	for _, o := range opts {
		o.apply(&c)
	}
	m := &mounter{fallback: func() mount.Interface { return c.fallback }}
	if c.fallback == nil {
		// Lazily, because mount.New runs umount(8). Without systemd, because the detection of
		// systemd in mount-utils is a data race between two first mounts.
		m.fallback = sync.OnceValue(func() mount.Interface { return mount.NewWithoutSystemd("") })
	}
	return m
}

type mounter struct{ fallback func() mount.Interface }

var _ mount.MounterForceUnmounter = (*mounter)(nil)

// Mount mounts source on target.
func (m *mounter) Mount(source, target, fsType string, opts []string) error {
	return m.MountSensitive(source, target, fsType, opts, nil)
}

// MountSensitive is Mount with options that appear in no error.
func (m *mounter) MountSensitive(source, target, fsType string, opts, sensitive []string) error {
	err := mountByKernel(source, target, fsType, opts, sensitive)
	if errors.Is(err, errMount8) {
		return m.fallback().MountSensitive(source, target, fsType, opts, sensitive)
	}
	return err
}

// MountSensitiveWithoutSystemd is MountSensitive: only the fallback uses systemd.
func (m *mounter) MountSensitiveWithoutSystemd(source, target, fsType string, opts, sensitive []string) error {
	err := mountByKernel(source, target, fsType, opts, sensitive)
	if errors.Is(err, errMount8) {
		return m.fallback().MountSensitiveWithoutSystemd(source, target, fsType, opts, sensitive)
	}
	return err
}

// MountSensitiveWithoutSystemdWithMountFlags is MountSensitive when there are no flags. Flags
// are arguments of mount(8), so a call with flags is passed to the fallback.
func (m *mounter) MountSensitiveWithoutSystemdWithMountFlags(source, target, fsType string, opts, sensitive, flags []string) error {
	err := errMount8
	if len(flags) == 0 {
		err = mountByKernel(source, target, fsType, opts, sensitive)
	}
	if errors.Is(err, errMount8) {
		return m.fallback().MountSensitiveWithoutSystemdWithMountFlags(source, target, fsType, opts, sensitive, flags)
	}
	return err
}

// CanSafelySkipMountPointCheck returns true: Unmount succeeds where nothing is mounted.
func (m *mounter) CanSafelySkipMountPointCheck() bool { return true }

// Unmount unmounts the top mount at target. It succeeds when nothing is mounted there,
// and returns fs.ErrNotExist when target does not exist.
func (m *mounter) Unmount(target string) error { return unmount(target, mountapi.Unmount) }

// UnmountWithForce is Unmount and, after umountTimeout, a second attempt with
// MNT_FORCE, which makes network and FUSE file systems abort pending requests.
// The first attempt cannot be cancelled: its goroutine ends when the kernel returns.
func (m *mounter) UnmountWithForce(target string, umountTimeout time.Duration) error {
	return withForce(umountTimeout,
		func() error { return unmount(target, mountapi.Unmount) },
		func() error { return unmount(target, mountapi.UnmountForce) })
}
