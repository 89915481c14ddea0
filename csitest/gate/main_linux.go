package gate

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// run is either process of the pair: the outer one, which only starts the inner
// one and cleans up, or the inner one, which gets its run directory from it.
func run(m *testing.M) {
	if dir, ok := os.LookupEnv(envRunDir); ok {
		// A test that starts the test binary again gets another pair.
		_ = os.Unsetenv(envRunDir)
		os.Exit(runTests(m, dir, makePrivate()))
	}
	// Before there is anything that a signal could leave behind.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passedOn...)
	dir, err := newRunDir()
	if err != nil {
		fmt.Fprintf(os.Stderr, "gate: make a run directory: %v\n", err)
		syscall.Exit(2)
	}
	var code int
	if pid, err := startInner(dir); err == nil {
		code = waitInner(pid, signals)
	} else {
		signal.Stop(signals)
		code = runTests(m, dir, fmt.Errorf("no private mount namespace (%w): run as root, or allow user namespaces "+
			"(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)", err))
	}
	if left := cleanRunDir(dir); left && code == 0 {
		code = 1
	}
	// Not os.Exit: this process ran no test, and a binary built for coverage
	// would complain that it has no place to write a profile to.
	syscall.Exit(code)
}

// newRunDir makes the run directory: short, because paths of unix sockets below
// it are limited to 108 bytes; free of symbolic links, because the kernel
// reports the backing file of a loop device that way; and open to others, because
// a test may start a program as another user.
func newRunDir() (string, error) {
	dir, err := os.MkdirTemp("", "gate-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

// makePrivate keeps mounts of this namespace from the host's, whose / is shared
// under systemd.
func makePrivate() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make / private in a mount namespace of our own: %w: run as root, or allow unprivileged user "+
			"namespaces to mount (sysctl kernel.apparmor_restrict_unprivileged_userns=0 where that exists)", err)
	}
	return nil
}

// runTests runs the tests in this process and returns the exit status.
func runTests(m *testing.M, dir string, mount error) int {
	surroundings.mount = mount
	_ = os.Setenv("TMPDIR", dir)
	_ = os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	before := takeInventory(dir, mount == nil)
	code := m.Run()
	skips.print()
	if reportLeaks(before) && code == 0 {
		code = 1
	}
	return code
}

// startInner starts the tests in a second process of this binary.
func startInner(dir string) (pid int, err error) {
	exe, err := os.Executable()
	if err != nil {
		return 0, err
	}
	// The death signal below is sent when the thread that started the child ends.
	runtime.LockOSThread()
	// What the tests leave running becomes our child when its parent dies.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	attr := &syscall.ProcAttr{
		Env:   append(os.Environ(), envRunDir+"="+dir),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL},
	}
	if pid, err = syscall.ForkExec(exe, os.Args, attr); err == nil {
		return pid, nil
	}
	attr.Sys.Cloneflags |= unix.CLONE_NEWUSER
	attr.Sys.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
	attr.Sys.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	if pid, err = syscall.ForkExec(exe, os.Args, attr); err != nil {
		runtime.UnlockOSThread()
	}
	return pid, err
}

var passedOn = []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2}

// waitInner passes signals on to the tests and returns their exit status.
func waitInner(pid int, signals <-chan os.Signal) int {
	// The reader of our output may be gone before us. That must not keep us from
	// cleaning up.
	signal.Ignore(unix.SIGPIPE)
	var mu sync.Mutex // a signal must not hit the next process with the same id
	running := true
	go func() {
		for s := range signals {
			mu.Lock()
			if running {
				_ = unix.Kill(pid, s.(syscall.Signal))
			}
			mu.Unlock()
		}
	}()
	for {
		// Orphans of the tests end here too, so wait for any child; but reap only
		// with the lock held.
		if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil && err != unix.EINTR {
			fmt.Fprintf(os.Stderr, "gate: wait for the tests: %v\n", err)
			return 2
		}
		mu.Lock()
		var status unix.WaitStatus
		ended, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		running = err != nil || ended != pid
		mu.Unlock()
		switch {
		case running:
		case status.Signaled():
			fmt.Fprintf(os.Stderr, "gate: the tests were ended by signal: %v\n", status.Signal())
			return 128 + int(status.Signal())
		default:
			return status.ExitStatus()
		}
	}
}
