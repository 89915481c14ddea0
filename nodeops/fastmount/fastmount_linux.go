package fastmount

import (
	"errors"
	"sync"
	"time"

	"github.com/csikit/csikit/nodeops/fastmount/internal/mountapi"
	mount "k8s.io/mount-utils"
)

// New returns a mounter that starts no program for what the package
// documentation lists. It is a mount.MounterForceUnmounter as well.
func New(opts ...Option) mount.Interface {
	var c config
	for _, o := range opts {
		o.apply(&c)
	}
	m := &mounter{fallback: func() mount.Interface { return c.fallback }}
	if c.fallback == nil {
		// Late, because making one starts umount(8). Without systemd, because
		// mount-utils looks for systemd in a way that two first mounts race on.
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

// MountSensitive is Mount with options that are in no error.
func (m *mounter) MountSensitive(source, target, fsType string, opts, sensitive []string) error {
	err := mountByKernel(source, target, fsType, opts, sensitive)
	if errors.Is(err, errMount8) {
		return m.fallback().MountSensitive(source, target, fsType, opts, sensitive)
	}
	return err
}

// MountSensitiveWithoutSystemd is MountSensitive: systemd is the fallback's matter.
func (m *mounter) MountSensitiveWithoutSystemd(source, target, fsType string, opts, sensitive []string) error {
	err := mountByKernel(source, target, fsType, opts, sensitive)
	if errors.Is(err, errMount8) {
		return m.fallback().MountSensitiveWithoutSystemd(source, target, fsType, opts, sensitive)
	}
	return err
}

// MountSensitiveWithoutSystemdWithMountFlags is the same without flags; flags
// are arguments of mount(8), and go there.
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

// CanSafelySkipMountPointCheck is true: Unmount of what is not mounted succeeds.
func (m *mounter) CanSafelySkipMountPointCheck() bool { return true }

// Unmount removes the top mount at target. That nothing is mounted there is
// success; that target does not exist is fs.ErrNotExist.
func (m *mounter) Unmount(target string) error { return unmount(target, mountapi.Unmount) }

// UnmountWithForce is Unmount, and after umountTimeout a second attempt with
// MNT_FORCE, which makes network and FUSE file systems give up what they wait
// for. The first attempt cannot be taken back: it ends when the kernel lets it.
func (m *mounter) UnmountWithForce(target string, umountTimeout time.Duration) error {
	return withForce(umountTimeout,
		func() error { return unmount(target, mountapi.Unmount) },
		func() error { return unmount(target, forceUnmount) })
}
