// Command demo walks a blockdriver as kubelet and the sidecars do, on real loop
// devices, and shows what happens: it is csicheck walk with three volumes (ext4, xfs,
// raw block), from CreateVolume to two pods' directories, through a kill -9 of the
// driver, expanded while data is written, and down to nothing left behind.
//
// It needs root. Everything happens below one temporary directory and inside a
// separate mount namespace; what an interrupted run left is removed by the next.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/csikit/csikit/csitest"
	"golang.org/x/sys/unix"
)

// insideEnv marks the process that was started again in its own mount namespace
// where to work.
const insideEnv = "CSIKIT_DEMO_DIR"

func main() {
	driver := flag.String("driver", "", "`path` of the blockdriver program (required)")
	flag.Parse()
	if *driver == "" {
		fatal(errors.New("-driver is required; make demo builds it and passes it"))
	}
	path, err := filepath.Abs(*driver)
	if err != nil {
		fatal(err)
	}
	if dir := os.Getenv(insideEnv); dir != "" {
		inside(dir, path)
		return
	}
	if err := outside(); err != nil {
		fatal(err)
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "demo:", err)
	os.Exit(1)
}

// outside starts this program again in a new mount namespace, waits for
// it, and removes what it left, however it ended.
func outside() error {
	sweep()
	dir, lock, err := newDir()
	if err != nil {
		return err
	}
	defer lock.Close()

	// The demo in the namespace hears Ctrl-C as well, takes everything down and
	// exits; we only must not die first.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), insideEnv+"="+dir)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		if errors.Is(err, syscall.EPERM) {
			err = fmt.Errorf("%w: loop devices and mounts need root; try: sudo make demo", err)
		}
		return errors.Join(fmt.Errorf("start in a mount namespace: %w", err), os.RemoveAll(dir)) // nothing used it
	}
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	select {
	case err = <-done:
	case <-ctx.Done():
		c.Process.Signal(syscall.SIGTERM) // for a SIGTERM that only we got
		select {
		case err = <-done:
		case <-time.After(30 * time.Second):
			c.Process.Kill()
			err = <-done
		}
	}
	left := removeDir(dir)
	if err == nil && left != nil {
		return left
	}
	if left != nil {
		fmt.Fprintln(os.Stderr, "demo: cleaned up after the failure:", left)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(max(exit.ExitCode(), 1)) // it has said why
	}
	return err
}

// inside is the demo proper.
func inside(dir, driver string) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// Nothing that is mounted here may reach the host.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fatal(fmt.Errorf("make mounts private: %w", err))
	}
	left, err := walk(ctx, dir, driver)
	switch {
	case ctx.Err() != nil:
		tearDown(dir)
		fmt.Println("\ninterrupted; everything was taken down")
		os.Exit(130)
	case err != nil || len(left) > 0:
		tearDown(dir)
		fmt.Printf("\nFAILED: %v\n", errors.Join(append(left, err)...))
		showLog(dir)
		os.Exit(1)
	}
	fmt.Println("  no loop device, and nothing in the pool")
}

// walk is the walk of csicheck, with a driver whose storage can be looked into.
func walk(ctx context.Context, dir, driver string) (left []error, err error) {
	log, err := os.OpenFile(logPath(dir), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	root := filepath.Join(dir, "kubelet")
	if err := os.Mkdir(root, 0o750); err != nil {
		return nil, err
	}
	endpoint := "unix://" + filepath.Join(dir, "csi.sock")
	if out, err := exec.CommandContext(ctx, driver, "init", "-pool", poolPath(dir)).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make the pool: %w: %s", err, out)
	}
	report, err := csitest.Walk(ctx, csitest.Target{Endpoint: endpoint, Start: func() *exec.Cmd {
		c := exec.Command(driver, "-endpoint", endpoint, "-pool", poolPath(dir), "-node-id", "demo-node")
		c.Stdout, c.Stderr = log, log
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return c
	}}, csitest.Config{Dir: root, Size: 512 << 20, CheckMounts: true}, []string{"ext4", "xfs", "block"}, os.Stdout)
	if err != nil {
		return nil, err
	}
	for _, x := range report.Results {
		for _, f := range x.Failures {
			left = append(left, errors.New(f.String()))
		}
		if x.Outcome != csitest.Passed && len(x.Failures) == 0 {
			left = append(left, fmt.Errorf("%s: %s", x.Outcome, x.Reason))
		}
	}
	for _, l := range report.NotCleaned {
		left = append(left, errors.New("left behind: "+l))
	}
	return append(left, leftBehind(dir)...), nil
}

// showLog prints the end of the driver's log.
func showLog(dir string) {
	text, err := os.ReadFile(logPath(dir))
	if err != nil {
		return
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	fmt.Println("\nThe end of the driver's log:")
	for _, l := range lines[max(0, len(lines)-25):] {
		fmt.Println(" ", l)
	}
}
