//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	bootTimeout  = 5 * time.Minute  // a boot usually takes 10 s
	stateTimeout = 20 * time.Second // to collect the state of a guest that hangs
	quitTimeout  = 10 * time.Second // for tests to exit after SIGQUIT
)

// A guest is a virtual machine.
type guest struct {
	config
	kernel  string
	qemu    *exec.Cmd
	exited  chan struct{}
	console *line // of the kernel
	monitor *line // of qemu
	tests   *line // a shell, which runs tests
	debug   *line // another one, to collect the state of a guest that hangs
}

// prepare creates the directory that a kernel boots from.
func prepare(ctx context.Context, c config, kernel string) (string, error) {
	dir, err := os.MkdirTemp(c.workdir, "linux")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "test/vm/prepare.sh", kernel, c.cache, dir)
	cmd.Stderr = os.Stderr
	return dir, cmd.Run()
}

// qemu returns the command for a guest. appended is added to the kernel's command line.
func qemu(ctx context.Context, c config, dir, appended string, more ...string) *exec.Cmd {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-accel", "tcg", "-cpu", "max", "-m", "3G", // one CPU: with two, one executes kernel text that the other is patching (Oops: int3)
		"-kernel", filepath.Join(dir, "vmlinuz"), "-initrd", filepath.Join(dir, "initrd"),
		"-append", "console=ttyS0 panic=-1 sysrq_always_enabled quiet " + appended,
	}
	for tag, path := range map[string]string{"host": "/", "cache": c.cache, "work": c.workdir} {
		args = append(args, "-virtfs", "local,mount_tag="+tag+",path="+path+",security_model=none,readonly=on,multidevs=remap")
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", append(args, more...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// runShell connects the terminal to a guest.
func runShell(ctx context.Context, c config) error {
	dir, err := prepare(ctx, c, c.kernels[0])
	if err != nil {
		return err
	}
	cmd := qemu(ctx, c, dir, "csikit.shell", "-chardev", "stdio,id=tty,signal=off", "-serial", "chardev:tty")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

// boot starts a guest and returns when it accepts commands.
func boot(ctx context.Context, c config, kernel string) (*guest, error) {
	start := time.Now()
	dir, err := prepare(ctx, c, kernel)
	if err != nil {
		return nil, err
	}
	g := &guest{config: c, kernel: kernel, exited: make(chan struct{})}
	g.qemu = qemu(ctx, c, dir, "",
		"-chardev", "socket,id=console,fd=3", "-serial", "chardev:console",
		"-chardev", "socket,id=monitor,fd=4", "-mon", "chardev=monitor",
		"-device", "virtio-serial-pci",
		"-chardev", "socket,id=tests,fd=5", "-device", "virtserialport,chardev=tests,nr=1",
		"-chardev", "socket,id=debug,fd=6", "-device", "virtserialport,chardev=debug,nr=2")
	g.qemu.Stderr = os.Stderr
	for _, l := range []**line{&g.console, &g.monitor, &g.tests, &g.debug} {
		var theirs *os.File
		if *l, theirs, err = newLine(); err != nil {
			return nil, err
		}
		defer theirs.Close()
		g.qemu.ExtraFiles = append(g.qemu.ExtraFiles, theirs)
	}
	if err := g.qemu.Start(); err != nil {
		return nil, fmt.Errorf("%w: install it with hack/tools.sh vm", err)
	}
	go func() { g.qemu.Wait(); close(g.exited) }()
	for _, l := range []*line{g.console, g.monitor} {
		go l.keep()
	}
	var version strings.Builder
	if _, err := g.tests.command(ctx, "uname -r; cut -d' ' -f1 /proc/uptime", bootTimeout, func(s string) { version.WriteString(s + " ") }); err != nil {
		fmt.Println(g.console.kept())
		g.kill()
		return nil, fmt.Errorf("boot: %w", err)
	}
	v := strings.Fields(version.String())
	g.say("booted Linux %s in %.0f s", v[0], time.Since(start).Seconds())
	return g, nil
}

func (g *guest) kill() {
	g.qemu.Process.Kill()
	<-g.exited
	for _, l := range []*line{g.console, g.monitor, g.tests, g.debug} {
		l.conn.Close()
	}
}

func (g *guest) say(format string, args ...any) {
	fmt.Printf("%-5s "+format+"\n", append([]any{g.kernel}, args...)...)
}

// run runs a job. A guest in which it hangs is no longer usable.
func (g *guest) run(ctx context.Context, j job) (r result, usable bool) {
	r = result{job: j, kernel: g.kernel, outcome: "ok"}
	dir, err := filepath.Abs(j.pkg)
	if err != nil {
		r.outcome = err.Error()
		return r, true
	}
	binary := j.binary("/mnt/work")
	command := fmt.Sprintf("cd %s && CSIKIT_TEST_REQUIRE=%s %s -test.v -test.run %s </dev/null",
		quote(dir), require, quote(binary), quote(j.run))
	g.say("%s -run '%s'", j.pkg, j.run)
	var output []string
	start := time.Now()
	each := func(s string) {
		output = append(output, s)
		outcome, rest, found := strings.Cut(strings.TrimPrefix(s, "--- "), ": ")
		if strings.HasPrefix(s, "--- ") && found {
			switch outcome {
			case "PASS":
				r.passed++
			case "FAIL":
				r.failed++
			case "SKIP":
				r.skipped++
			}
			if !g.verbose {
				g.say("%s %s", outcome, rest)
			}
		}
		if g.verbose || strings.HasPrefix(s, "# ") {
			g.say("%s", s)
		}
	}
	status, err := g.tests.command(ctx, command, j.timeout, each)
	r.took = time.Since(start)
	switch {
	case err != nil:
		r.outcome = err.Error()
	case status != 0:
		r.outcome = fmt.Sprintf("exit status %d", status)
	case r.passed == 0:
		r.outcome = "no tests were run"
	}
	if r.outcome != "ok" && !g.verbose {
		fmt.Println(strings.Join(output, "\n"))
	}
	if err != nil && ctx.Err() == nil {
		g.printState(ctx)
		// A Go program prints the stacks of its goroutines.
		g.debug.command(ctx, "pkill -QUIT -f '[.]test -test'", stateTimeout, func(string) {})
		g.tests.rest(quitTimeout, func(s string) { fmt.Println(s) })
	}
	return r, err == nil
}

// state is a script that prints what a guest hangs on.
const state = `ps -eo pid,ppid,pgid,stat,wchan:30,etime,args | awk '$2 != 2'
for p in /proc/[0-9]*; do
	case $(cut -d')' -f2- $p/stat) in " D"*) echo "$p $(cat $p/comm)"; cat $p/stack;; esac
done
cat /proc/mounts; losetup -a; ip -br addr; free -m`

// printState prints the state from the guest, and from its kernel, in case no process runs.
func (g *guest) printState(ctx context.Context) {
	g.say("state of the guest:")
	_, err := g.debug.command(ctx, state, stateTimeout, func(s string) { fmt.Println(s) })
	if err != nil {
		g.say("no response: %v", err)
	}
	keys := "9w"
	if err != nil {
		keys = "9wlt"
	}
	for _, key := range keys {
		// On a serial console, SysRq is a break.
		fmt.Fprint(g.monitor.conn, "chardev-send-break console\n")
		time.Sleep(200 * time.Millisecond)
		fmt.Fprint(g.console.conn, string(key))
		time.Sleep(time.Second)
	}
	g.say("kernel messages:\n%s", g.console.kept())
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
