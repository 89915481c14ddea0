//go:build linux

// Vm runs tests in a virtual machine, for what few machines have: a kernel with NFS,
// device-mapper and SCSI, and one that is older.
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
of the table in table.go, or those of its packages that are named. The guest's root is
the host's, below a layer in memory; nothing that the tests do reaches the host.
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
	only := flag.String("kernel", strings.Join(kernels, ","), "kernels to boot, all at once")
	flag.StringVar(&c.run, "run", "", "run the tests of the packages that match this `regexp`, instead of the table")
	flag.DurationVar(&c.timeout, "timeout", 3*time.Minute, "with -run, how long the tests of a package may take")
	flag.BoolVar(&c.long, "long", false, "run those of the table that are left to make torture, too")
	flag.BoolVar(&c.verbose, "v", false, "print all that tests and kernels say")
	shell := flag.Bool("shell", false, "start a shell in the guest instead")
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

// jobs selects from the table, or makes what was asked for.
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
		return nil, fmt.Errorf("the table has nothing for %v; -run runs what is not in it", c.packages)
	}
	return jobs, nil
}

// binary is where the tests of a package are, below a directory of the host or the guest.
func (j job) binary(dir string) string {
	return filepath.Join(dir, strings.ReplaceAll(strings.TrimPrefix(j.pkg, "./"), "/", "_")+".test")
}

// build compiles the tests. The race detector is left to the host: it makes them some
// ten times slower here, and they are no others.
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
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%.0f s\t%s\n", r.kernel, r.pkg, r.passed, r.failed, r.skipped, r.took.Seconds(), r.verdict)
		ok = ok && r.verdict == "ok"
	}
	w.Flush()
	fmt.Printf("%.0f s in all\n", time.Since(start).Seconds())
	return ok, errors.Join(errs...)
}

// A result is what came of a job.
type result struct {
	job
	kernel                  string
	passed, failed, skipped int
	took                    time.Duration
	verdict                 string // "ok" or what went wrong
}

// runOn runs the jobs on one kernel, in one guest as long as none hangs.
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
		r, sound := g.run(ctx, j)
		results = append(results, r)
		if !sound {
			g.kill()
			g = nil
		}
		if ctx.Err() != nil {
			return results, ctx.Err()
		}
	}
	return results, nil
}
