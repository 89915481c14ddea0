package gate

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

func probeUserNS() (err error) {
	dir, err := os.MkdirTemp("", "gate-")
	if err != nil {
		return err
	}
	// Remove, not RemoveAll: a mount that could not be undone must not be emptied.
	defer func() { err = errors.Join(err, os.Remove(dir)) }()
	for _, m := range []struct {
		fstype string
		flags  uintptr
	}{{"tmpfs", 0}, {"", unix.MS_BIND}} {
		if err := unix.Mount(dir, dir, m.fstype, m.flags, ""); err != nil {
			return fmt.Errorf("mount in a private mount namespace: %w: run as root, or allow unprivileged user namespaces "+
				"(sysctl kernel.apparmor_restrict_unprivileged_userns=0 where that exists)", err)
		}
		if err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	return nil
}

func probeRoot() (err error) {
	dir, err := os.MkdirTemp("", "gate-")
	if err != nil {
		return err
	}
	target, image := filepath.Join(dir, "mnt"), filepath.Join(dir, "image")
	defer func() { err = errors.Join(err, os.Remove(target), os.Remove(image), os.Remove(dir)) }()
	if err := errors.Join(os.Mkdir(target, 0o700), os.WriteFile(image, make([]byte, 1<<20), 0o600)); err != nil {
		return err
	}
	loop, err := configureLoop(image)
	if err != nil {
		return fmt.Errorf("%w: run as root on a kernel with CONFIG_BLK_DEV_LOOP and with /dev/loop-control and "+
			"/dev/loop* present (in a container: privileged, with the host's /dev)", err)
	}
	defer func() {
		err = errors.Join(err, unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_CLR_FD, 0), loop.Close())
	}()
	// The image is blank: EINVAL says that everything but its content was in order.
	// Read-only, because an earlier user may have left the device so.
	err = unix.Mount(loop.Name(), target, "ext4", unix.MS_RDONLY|unix.MS_SILENT, "")
	switch {
	case err == nil:
		return unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
	case errors.Is(err, unix.EINVAL):
		return nil
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("mount ext4: %w: the kernel lacks it", err)
	}
	return fmt.Errorf("mount ext4 from %s: %w: run as root of the initial user namespace", loop.Name(), err)
}

// configureLoop attaches image to a free loop device.
func configureLoop(image string) (*os.File, error) {
	backing, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		loop, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		if err = unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_FD, int(backing.Fd())); err == nil {
			return loop, nil
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) { // EBUSY: another process took the number first
			return nil, fmt.Errorf("configure %s: %w", loop.Name(), err)
		}
	}
}

// initUserNS is PROC_USER_INIT_INO, which the kernel never changes.
const initUserNS = "user:[4026531837]"

func checkCapabilities(caps []int) error {
	if ns, err := os.Readlink("/proc/self/ns/user"); err != nil || ns != initUserNS {
		return fmt.Errorf("process is in user namespace %q (%w), not in the initial one: run as root", ns, err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	var missing []string
	for _, c := range caps {
		if c < 0 || c > 63 {
			return fmt.Errorf("capability %d does not exist", c)
		}
		if data[c/32].Effective&(1<<(c%32)) == 0 {
			missing = append(missing, fmt.Sprint(c))
		}
	}
	if missing != nil {
		return fmt.Errorf("capability %s (numbers as in capability.h) not held: run as root with it (in a container: privileged)", strings.Join(missing, ", "))
	}
	return nil
}

// loadModule leaves to modprobe, which knows what is built in, what there is.
func loadModule(name string) error {
	if _, err := os.Stat("/sys/module/" + name); err == nil {
		return nil
	}
	out, err := exec.Command("modprobe", name).CombinedOutput()
	if err != nil {
		return fmt.Errorf("the kernel has no %s: modprobe: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}
