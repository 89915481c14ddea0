package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cageArg makes this program the first process of a cage.
const cageArg = "in-cage"

// inCage runs a command, as root, that can do no harm: in namespaces of its own, where
// everything but dir is read-only, dir is an empty tmpfs, /dev has loop devices and no disk,
// there is no network, and there are no other processes. When it returns nothing is left of
// it: no process, mount or loop device.
//
// It is for mistakes: root in a cage could mount something writable on purpose.
//
// Loop devices are the machine's. A mutant that looked for those of other programs could
// change them: functions that do are not to be mutated (-skip).
func inCage(ctx context.Context, dir, command string, env []string, log io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, cageArg, dir, command)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(env, "TMPDIR="+dir), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWNET | unix.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = time.Minute // for its cleanup
	return cmd.Run()
}

// cageMain is process 1 of the cage. Its end ends all others.
func cageMain(dir, command string) {
	if err := enterCage(dir); err != nil {
		fmt.Println("cage:", err)
		os.Exit(100)
	}
	cmd := exec.Command("/bin/sh", "-c", command)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		fmt.Println("cage:", err)
		os.Exit(100)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM)
	go func() {
		<-stop
		_ = unix.Kill(-1, unix.SIGKILL)
	}()
	// The paths of loop devices are known only here, where the mounts are.
	leave := func(code int) {
		_ = unix.Kill(-1, unix.SIGKILL) // all but this process
		if err := detachBelow(dir); err != nil {
			fmt.Println("cage:", err)
			code = 100
		}
		os.Exit(code)
	}
	for { // orphans are reaped here, too
		var state unix.WaitStatus
		pid, err := unix.Wait4(-1, &state, 0, nil)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			fmt.Println("cage:", err)
			os.Exit(100)
		case pid == cmd.Process.Pid && state.Exited():
			leave(state.ExitStatus())
		case pid == cmd.Process.Pid:
			fmt.Println("cage: the command was killed by", state.Signal())
			leave(100)
		}
	}
}

const loopNodes = 256

func enterCage(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	dev := filepath.Join(dir, "dev") // until it is moved
	if err := errors.Join(unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=700,size=6g"), os.Mkdir(dev, 0o755),
		unix.Mount("tmpfs", dev, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=1m")); err != nil {
		return fmt.Errorf("tmpfs: %w", err)
	}
	node := func(name string, kind uint32, major, minor uint32) error {
		return unix.Mknod(filepath.Join(dev, name), kind|0o666, int(unix.Mkdev(major, minor)))
	}
	err := errors.Join(node("null", unix.S_IFCHR, 1, 3), node("zero", unix.S_IFCHR, 1, 5), node("full", unix.S_IFCHR, 1, 7),
		node("random", unix.S_IFCHR, 1, 8), node("urandom", unix.S_IFCHR, 1, 9),
		node("loop-control", unix.S_IFCHR, 10, 237), node("btrfs-control", unix.S_IFCHR, 10, 234), node("fuse", unix.S_IFCHR, 10, 229),
		os.Symlink("/proc/self/fd", filepath.Join(dev, "fd")))
	for n := range uint32(loopNodes) {
		err = errors.Join(err, node(fmt.Sprintf("loop%d", n), unix.S_IFBLK, 7, n))
	}
	err = errors.Join(err, unix.Mount(dev, "/dev", "", unix.MS_MOVE, ""), os.Remove(dev))
	if err != nil {
		return fmt.Errorf("/dev: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("read-only: %w", err)
	}
	// /dev is a tmpfs of the cage's own; what binds a node of it would be read-only, too.
	return errors.Join(
		unix.MountSetattr(unix.AT_FDCWD, dir, 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}),
		unix.MountSetattr(unix.AT_FDCWD, "/dev", 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}))
}

// detachBelow detaches the loop devices whose files lie below dir. Their mounts are gone with
// the cage, though not at once.
func detachBelow(dir string) error {
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		unmountBelow(dir)
		left, err := loopsBelow(dir)
		if err != nil || len(left) == 0 {
			return err
		}
		if time.Since(begin) > 30*time.Second {
			return fmt.Errorf("%w: loop devices that remain: %v", errLeft, left)
		}
		for _, n := range left {
			f, err := os.Open(fmt.Sprintf("/dev/loop%d", n))
			if err != nil {
				return err
			}
			// One that is still mounted is detached with its last use.
			err = unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0)
			if err := errors.Join(err, f.Close()); err != nil && !errors.Is(err, unix.ENXIO) && !errors.Is(err, unix.EBUSY) {
				return err
			}
		}
	}
}

// unmountBelow unmounts what is mounted below dir, the last first.
func unmountBelow(dir string) {
	table, _ := os.ReadFile("/proc/self/mountinfo")
	lines := strings.Split(string(table), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if f := strings.Fields(lines[i]); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			_ = unix.Unmount(f[4], 0) // again in the next round
		}
	}
}

var errLeft = errors.New("not cleaned up")

// loopsBelow returns the loop devices of files on the file system dir, and of files on a file
// system of theirs. Their paths say nothing: they are those of a mount namespace that is gone.
func loopsBelow(dir string) (numbers []int, err error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, err
	}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	on := map[int]uint64{} // the device with the file of a loop device
	for _, file := range files {
		n, err := strconv.Atoi(strings.TrimPrefix(strings.Split(file, "/")[3], "loop"))
		if err != nil {
			return nil, err
		}
		f, err := os.Open(fmt.Sprintf("/dev/loop%d", n))
		if err != nil {
			return nil, err
		}
		info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
		f.Close()
		if errors.Is(err, unix.ENXIO) {
			continue // detached meanwhile
		}
		if err != nil {
			return nil, err
		}
		on[n] = info.Device
	}
	ours := map[uint64]bool{st.Dev: true}
	for range on {
		for n, device := range on {
			if loop := unix.Mkdev(7, uint32(n)); ours[device] && !ours[loop] {
				ours[loop] = true
				numbers = append(numbers, n)
			}
		}
	}
	return numbers, nil
}
