//go:build linux

// Vm runs tests in a virtual machine that need what few machines have: a kernel with NFS,
// device-mapper and SCSI, and an older one.
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
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

const usage = `usage: go run ./test/vm [flags] [package...]

Boots Debian's kernels under qemu, in emulation, and runs tests inside as root: those
of the table in jobs.go, or of its packages that are given as arguments. The guest's root
is the host's with an overlay in memory; the tests cannot change the host.
"hack/tools.sh vm" installs qemu; kernels and programs of the guest are downloaded to
%s and reused; delete it to get newer ones.

  go run ./test/vm                                       the table, on every kernel
  go run ./test/vm -kernel 6.1 ./nodeops                 one package's part of it
  go run ./test/vm -kernel 6.1 -v -run 'Share' ./nodeops any tests, in the table or not
  go run ./test/vm -shell                                a shell in the guest

`

type config struct {
	kernels        []string
	run            string
	timeout        time.Duration
	long, verbose  bool
	packages       []string
	cache, workdir string
}

func main() {
	cache, err := os.UserCacheDir()
	if err != nil {
		fail(err)
	}
	c := config{cache: filepath.Join(cache, "csikit-vm")}
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), usage, c.cache)
		flag.PrintDefaults()
	}
	only := flag.String("kernel", strings.Join(kernels, ","), "kernels to boot, concurrently")
	flag.StringVar(&c.run, "run", "", "run the tests of the packages that match this `regexp` instead of the table")
	flag.DurationVar(&c.timeout, "timeout", 3*time.Minute, "with -run, timeout for the tests of a package")
	flag.BoolVar(&c.long, "long", false, "also run those of the table that only make torture runs")
	flag.BoolVar(&c.verbose, "v", false, "print all output of tests and kernels")
	shell := flag.Bool("shell", false, "start a shell in the guest instead of tests")
	flag.Parse()
	c.kernels, c.packages = strings.Split(*only, ","), flag.Args()

	if err := chdirToModule(); err != nil {
		fail(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c.workdir, err = os.MkdirTemp("", "vm")
	if err != nil {
		fail(err)
	}
	ok, err := false, error(nil)
	if *shell {
		err = runShell(ctx, c)
		ok = err == nil
	} else {
		ok, err = runTable(ctx, c)
	}
	os.RemoveAll(c.workdir)
	if err != nil {
		fail(err)
	}
	if !ok {
		os.Exit(1)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "vm:", err)
	os.Exit(1)
}

func chdirToModule() error {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return err
	}
	return os.Chdir(filepath.Dir(strings.TrimSpace(string(out))))
}

// jobs returns the selected part of the table, or jobs for -run.
func (c config) jobs() ([]job, error) {
	var jobs []job
	if c.run != "" {
		if len(c.packages) == 0 {
			return nil, errors.New("-run needs packages")
		}
		for _, pkg := range c.packages {
			jobs = append(jobs, job{pkg: pkg, run: c.run, timeout: c.timeout})
		}
		return jobs, nil
	}
	for _, j := range table {
		if (c.long || !j.long) && (len(c.packages) == 0 || slices.Contains(c.packages, j.pkg)) {
			jobs = append(jobs, j)
		}
	}
	if len(jobs) == 0 {
		return nil, fmt.Errorf("the table has no job for %v; -run runs any tests", c.packages)
	}
	return jobs, nil
}

// binary returns the path of a package's test binary, below a directory of the host or the guest.
func (j job) binary(dir string) string {
	return filepath.Join(dir, strings.ReplaceAll(strings.TrimPrefix(j.pkg, "./"), "/", "_")+".test")
}

// build compiles the tests, without the race detector: it makes them about ten times
// slower here, and the host runs the same tests with it.
func build(ctx context.Context, jobs []job, dir string) error {
	built := map[string]bool{}
	for _, j := range jobs {
		if built[j.pkg] {
			continue
		}
		built[j.pkg] = true
		cmd := exec.CommandContext(ctx, "go", "-C", j.pkg, "test", "-c", "-o", j.binary(dir), ".") // the package may be of another module
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
		}
	}
	return nil
}

func runTable(ctx context.Context, c config) (bool, error) {
	jobs, err := c.jobs()
	if err != nil {
		return false, err
	}
	start := time.Now()
	if err := build(ctx, jobs, c.workdir); err != nil {
		return false, err
	}
	fmt.Printf("compiled in %.0f s\n", time.Since(start).Seconds())
	var (
		wg      sync.WaitGroup
		results = make([][]result, len(c.kernels))
		errs    = make([]error, len(c.kernels))
	)
	for i, kernel := range c.kernels {
		wg.Go(func() { results[i], errs[i] = runOn(ctx, c, kernel, jobs) })
	}
	wg.Wait()
	ok := true
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nkernel\tpackage\tpassed\tfailed\tskipped\ttime\t")
	for _, r := range slices.Concat(results...) {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%.0f s\t%s\n", r.kernel, r.pkg, r.passed, r.failed, r.skipped, r.took.Seconds(), r.outcome)
		ok = ok && r.outcome == "ok"
	}
	w.Flush()
	fmt.Printf("%.0f s in total\n", time.Since(start).Seconds())
	return ok, errors.Join(errs...)
}

// A result is the result of a job.
type result struct {
	job
	kernel                  string
	passed, failed, skipped int
	took                    time.Duration
	outcome                 string // "ok" or the error
}

// runOn runs the jobs on one kernel, in one guest unless a job hangs.
func runOn(ctx context.Context, c config, kernel string, jobs []job) (results []result, err error) {
	var g *guest
	defer func() {
		if g != nil {
			g.kill()
		}
	}()
	for _, j := range jobs {
		if j.kernels != nil && !slices.Contains(j.kernels, kernel) {
			continue
		}
		if g == nil {
			if g, err = boot(ctx, c, kernel); err != nil {
				return results, fmt.Errorf("linux %s: %w", kernel, err)
			}
		}
		r, usable := g.run(ctx, j)
		results = append(results, r)
		if !usable {
			g.kill()
			g = nil
		}
		if ctx.Err() != nil {
			return results, ctx.Err()
		}
	}
	return results, nil
}
