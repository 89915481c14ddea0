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
	bootTime = 5 * time.Minute  // for a boot; 10 s are usual
	lookTime = 20 * time.Second // for the guest to say in what state it is
	grace    = 10 * time.Second // for tests that are told to end
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
	look    *line // another one, which looks at what hangs
}

// prepare makes the directory that a kernel boots from.
func prepare(ctx context.Context, c config, kernel string) (string, error) {
	dir, err := os.MkdirTemp(c.workdir, "linux")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "test/vm/prepare.sh", kernel, c.cache, dir)
	cmd.Stderr = os.Stderr
	return dir, cmd.Run()
}

// qemu is the command of every guest. The last words for the kernel are append.
func qemu(ctx context.Context, c config, dir, appended string, more ...string) *exec.Cmd {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-accel", "tcg", "-cpu", "max", "-m", "3G", // one CPU: of two, one runs into what the other patches in the kernel's text (Oops: int3)
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

// runShell gives the terminal to a guest.
func runShell(ctx context.Context, c config) error {
	dir, err := prepare(ctx, c, c.kernels[0])
	if err != nil {
		return err
	}
	cmd := qemu(ctx, c, dir, "csikit.shell", "-chardev", "stdio,id=tty,signal=off", "-serial", "chardev:tty")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

// boot starts a guest and returns when it takes commands.
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
		"-chardev", "socket,id=look,fd=6", "-device", "virtserialport,chardev=look,nr=2")
	g.qemu.Stderr = os.Stderr
	for _, l := range []**line{&g.console, &g.monitor, &g.tests, &g.look} {
		var theirs *os.File
		if *l, theirs, err = newLine(); err != nil {
			return nil, err
		}
		defer theirs.Close()
		g.qemu.ExtraFiles = append(g.qemu.ExtraFiles, theirs)
	}
	if err := g.qemu.Start(); err != nil {
		return nil, fmt.Errorf("%w: hack/tools.sh vm installs it", err)
	}
	go func() { g.qemu.Wait(); close(g.exited) }()
	for _, l := range []*line{g.console, g.monitor} {
		go l.keep()
	}
	var version strings.Builder
	if _, err := g.tests.command(ctx, "uname -r; cut -d' ' -f1 /proc/uptime", bootTime, func(s string) { version.WriteString(s + " ") }); err != nil {
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
	for _, l := range []*line{g.console, g.monitor, g.tests, g.look} {
		l.conn.Close()
	}
}

func (g *guest) say(format string, args ...any) {
	fmt.Printf("%-5s "+format+"\n", append([]any{g.kernel}, args...)...)
}

// run runs a job. A guest in which it hangs is not sound any more.
func (g *guest) run(ctx context.Context, j job) (r result, sound bool) {
	r = result{job: j, kernel: g.kernel, verdict: "ok"}
	dir, err := filepath.Abs(j.pkg)
	if err != nil {
		r.verdict = err.Error()
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
		verdict, rest, found := strings.Cut(strings.TrimPrefix(s, "--- "), ": ")
		if strings.HasPrefix(s, "--- ") && found {
			switch verdict {
			case "PASS":
				r.passed++
			case "FAIL":
				r.failed++
			case "SKIP":
				r.skipped++
			}
			if !g.verbose {
				g.say("%s %s", verdict, rest)
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
		r.verdict = err.Error()
	case status != 0:
		r.verdict = fmt.Sprintf("exit status %d", status)
	case r.passed == 0:
		r.verdict = "no tests were run"
	}
	if r.verdict != "ok" && !g.verbose {
		fmt.Println(strings.Join(output, "\n"))
	}
	if err != nil && ctx.Err() == nil {
		g.printState(ctx)
		// A Go program says what its goroutines do.
		g.look.command(ctx, "pkill -QUIT -f '[.]test -test'", lookTime, func(string) {})
		g.tests.rest(grace, func(s string) { fmt.Println(s) })
	}
	return r, err == nil
}

// state is what says where a guest hangs.
const state = `ps -eo pid,ppid,pgid,stat,wchan:30,etime,args | awk '$2 != 2'
for p in /proc/[0-9]*; do
	case $(cut -d')' -f2- $p/stat) in " D"*) echo "$p $(cat $p/comm)"; cat $p/stack;; esac
done
cat /proc/mounts; losetup -a; ip -br addr; free -m`

// printState asks the guest, and its kernel, for no process may run any more.
func (g *guest) printState(ctx context.Context) {
	g.say("state of the guest:")
	_, err := g.look.command(ctx, state, lookTime, func(s string) { fmt.Println(s) })
	if err != nil {
		g.say("it does not answer: %v", err)
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
	g.say("its kernel says:\n%s", g.console.kept())
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
