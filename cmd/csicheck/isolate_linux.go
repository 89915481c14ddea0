package main

import (
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// isolated is set in the environment of the program that isolate runs.
const isolated = "CSIKIT_CSICHECK_ISOLATED"

// isolate runs csicheck again, in a mount namespace of its own, if it is to start a driver.
// A container that starts meanwhile would otherwise copy the driver's mounts and hold their
// devices. What is mounted elsewhere still shows here. Without the right to do so it does
// nothing: csicheck then names who holds a device.
func isolate(args []string) {
	if os.Getenv(isolated) != "" {
		_ = os.Unsetenv(isolated) // the driver need not know
		return
	}
	starts := func(arg string) bool {
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		return strings.HasPrefix(arg, "-") && name == "start"
	}
	if os.Geteuid() != 0 || !slices.ContainsFunc(args, starts) {
		return
	}
	self, err := os.Executable()
	if err != nil {
		return
	}
	runtime.LockOSThread()
	if unix.Unshare(unix.CLONE_NEWNS) != nil {
		runtime.UnlockOSThread()
		return
	}
	_ = unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "") // private is no worse
	// Only this thread is in the new namespace; the new program has no other.
	err = unix.Exec(self, os.Args, append(os.Environ(), isolated+"=1"))
	panic("csicheck: run " + self + " again: " + err.Error())
}
