// Command stress runs the tests of packages again and again while the machine is short of
// time: each run has a quarter of a core, and twice as many busy loops as there are cores,
// a writer and a user of memory run beside it. What fails then and not otherwise is a test
// that waits for a time, or a defect that takes one to be slow.
//
//	make stress STRESS='-n 5 ./registration ./nodeops'
//
// Test binaries and temporary files take some gigabytes in TMPDIR, whose path has to be
// short, as sockets are made below it. Each package is run in its directory. Nothing is left
// behind, also not after Ctrl-C.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// envKeep is set for the copy of this program that go test starts in place of a test.
const envKeep = "CSIKIT_STRESS_KEEP"

func main() {
	if dir := os.Getenv(envKeep); dir != "" {
		if err := keep(dir, os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, "stress:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait for the tests
	failed, err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "stress:", err)
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}

type config struct {
	n, parallel, busy, quota int
	timeout                  time.Duration
	tests, outputs, all      string
	short, race              bool
	packages                 []string
}

func run(ctx context.Context, args []string, out io.Writer) (failed bool, err error) {
	var c config
	flags := flag.NewFlagSet("stress", flag.ExitOnError)
	flags.IntVar(&c.n, "n", 20, "`number` of runs of each package")
	flags.IntVar(&c.parallel, "j", 4*runtime.NumCPU(), "`number` of runs side by side")
	flags.IntVar(&c.busy, "busy", 2*runtime.NumCPU(), "`number` of busy loops; 0: no load beside the tests")
	flags.IntVar(&c.quota, "quota", 25, "`percent` of a core that each run has; 0: no limit")
	flags.DurationVar(&c.timeout, "timeout", 30*time.Minute, "how `long` one run may take")
	flags.StringVar(&c.tests, "run", "", "`regexp` of the tests to run")
	flags.StringVar(&c.outputs, "o", "", "`directory` to keep the output of the runs that failed in")
	flags.BoolVar(&c.short, "short", false, "run the tests with -short")
	flags.BoolVar(&c.race, "race", true, "build with the race detector")
	flags.StringVar(&c.all, "packages", "./...", "the `packages` if no arguments name others")
	_ = flags.Parse(args) // exits
	if c.packages = flags.Args(); len(c.packages) == 0 {
		c.packages = strings.Fields(c.all)
	}

	// Short: sockets are made below it. Without links and open to others, like gate's.
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return false, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return false, err
	}
	binaries, err := build(ctx, c, filepath.Join(dir, "bin"))
	if err != nil {
		return false, err
	}
	limit, err := newLimit(c.quota)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, limit.close()) }()
	fmt.Fprintf(out, "%d packages, %d times, %d side by side, each with %s; %d busy loops\n", len(binaries), c.n, c.parallel, limit, c.busy)
	defer load(dir, c.busy)()
	results := runAll(ctx, c, binaries, dir, limit, out)
	return report(results, out), nil
}

// A binary is the tests of a package, which expect to run in its directory.
type binary struct{ name, path, dir string }

// build compiles the tests of all packages with one go command, which starts this program
// in place of each: so they are built at once, also those with one name.
func build(ctx context.Context, c config, dir string) ([]binary, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"test", "-count=1", "-vet=off", "-exec", exe}
	if c.race {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, c.packages...)...)
	cmd.Env = append(os.Environ(), envKeep+"="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build: %w\n%s", err, out)
	}
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	places, err := filepath.Glob(filepath.Join(dir, "*", "dir"))
	if err != nil || len(places) == 0 {
		return nil, fmt.Errorf("no tests in %s", strings.Join(c.packages, " "))
	}
	var all []binary
	for _, place := range places {
		text, err := os.ReadFile(place)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(here, string(text))
		if err != nil {
			return nil, err
		}
		all = append(all, binary{name, filepath.Join(filepath.Dir(place), "test"), string(text)})
	}
	return all, nil
}

// keep copies a test binary, which go test removes, together with the directory that it runs in.
func keep(dir, path string) error {
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	to, err := os.MkdirTemp(dir, strings.ReplaceAll(strings.TrimPrefix(here, "/"), "/", "_")+"-")
	if err != nil {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return errors.Join(
		os.Chmod(to, 0o755), // tests start themselves as nobody
		os.WriteFile(filepath.Join(to, "test"), text, 0o755),
		os.WriteFile(filepath.Join(to, "dir"), []byte(here), 0o644))
}

// A result is what came of the runs of a package.
type result struct {
	name           string
	runs, failures int
	longest, cpu   time.Duration // of one run
	tests          map[string]*failure
}

// A failure is a test that failed, and its output of the last time.
type failure struct {
	times int
	lines []string
}

// runAll goes through the packages n times, so that a run ended early has seen them all.
func runAll(ctx context.Context, c config, binaries []binary, dir string, l *limit, out io.Writer) []*result {
	results := make([]*result, len(binaries))
	for i, b := range binaries {
		results[i] = &result{name: b.name, tests: map[string]*failure{}}
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	free := make(chan struct{}, c.parallel)
	for n := range c.n {
		for i, b := range binaries {
			select {
			case free <- struct{}{}:
			case <-ctx.Done():
			}
			if ctx.Err() != nil {
				all.Wait()
				return results
			}
			all.Go(func() {
				defer func() { <-free }()
				begin := time.Now()
				text, cpu, err := runOnce(ctx, c, b, dir, l)
				if ctx.Err() != nil {
					return // it was interrupted, which says nothing of it
				}
				mu.Lock()
				defer mu.Unlock()
				r := results[i]
				r.runs++
				took := time.Since(begin)
				r.longest, r.cpu = max(r.longest, took), max(r.cpu, cpu)
				outcome := "ok"
				if err != nil {
					r.failures++
					tests := failedTests(text, err)
					for name, lines := range tests {
						r.tests[name] = &failure{times: 1 + times(r.tests[name]), lines: lines}
					}
					outcome = fmt.Sprintf("FAILED %s", strings.Join(sortedKeys(tests), " "))
					if c.outputs != "" {
						name := fmt.Sprintf("%s-%d.txt", strings.ReplaceAll(b.name, "/", "_"), n+1)
						err = errors.Join(os.MkdirAll(c.outputs, 0o755), os.WriteFile(filepath.Join(c.outputs, name), []byte(text), 0o644))
						if err != nil {
							outcome += ": " + err.Error()
						}
					}
				}
				fmt.Fprintf(out, "%-42s %3d %6.1f s  %s\n", b.name, n+1, took.Seconds(), outcome)
			})
		}
	}
	all.Wait()
	return results
}

func times(f *failure) int {
	if f == nil {
		return 0
	}
	return f.times
}

// serial makes the names of directories, short because sockets are made below them.
var serial atomic.Int64

// runOnce runs the tests of one package in a directory of their own, and requires that they
// leave nothing in it.
func runOnce(ctx context.Context, c config, b binary, dir string, l *limit) (output string, cpu time.Duration, err error) {
	tmp := filepath.Join(dir, strconv.FormatInt(serial.Add(1), 36))
	if err := os.Mkdir(tmp, 0o755); err != nil { // open to the tests that run as nobody
		return "", 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	args := []string{b.path, "-test.count=1", "-test.timeout=" + c.timeout.String(), "-test.run=" + c.tests}
	if c.short {
		args = append(args, "-test.short")
	}
	group, err := l.group()
	if err != nil {
		return "", 0, err
	}
	defer func() { err = errors.Join(err, group.close()) }() // ends what is left of it
	// The tests' own timeout says where they are; this is for those that do not end even then.
	ctx, cancel := context.WithTimeout(ctx, c.timeout+time.Minute)
	defer cancel()
	args = group.command(args)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = b.dir
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "PWD="+b.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C reaches them through us alone
	cmd.Cancel = func() error { return syscall.Kill(cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 2 * time.Minute // gate removes what the tests have left, with a quarter of a core
	var text strings.Builder
	cmd.Stdout, cmd.Stderr = &text, &text
	err = cmd.Run()
	if cmd.ProcessState != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what is left of it where there is no control group
		cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	if left := leftIn(tmp); left != "" && ctx.Err() == nil {
		fmt.Fprintf(&text, "left behind:\n%s", left)
		err = cmp.Or(err, errors.New("left something behind"))
	}
	if err != nil {
		fmt.Fprintf(&text, "%v\n", err)
	}
	return text.String(), cpu, err
}

// leftIn lists the loop devices, mounts and files of a directory.
func leftIn(dir string) string {
	var left strings.Builder
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(text), dir+"/") {
			fmt.Fprintf(&left, "%s: %s", file, text)
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, " "+dir+"/") {
			left.WriteString(line)
		}
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		fmt.Fprintln(&left, filepath.Join(dir, e.Name()))
	}
	return left.String()
}
