// Command mutate changes a program in one place at a time, and lists the changes that a
// check of the program does not notice. README.md explains how it is used here.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) == 4 && os.Args[1] == cageArg {
		cageMain(os.Args[2], os.Args[3])
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	ok, err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

type config struct {
	module, build, run, work, explained string
	skip, only, again, without          string
	sample, parallel                    int
	seed                                uint64
	timeout                             time.Duration
	list                                bool
	packages                            []string
}

func run(ctx context.Context, args []string, out io.Writer) (ok bool, err error) {
	var c config
	flags := flag.NewFlagSet("mutate", flag.ExitOnError)
	flags.StringVar(&c.module, "C", ".", "`directory` of the module whose packages are mutated")
	flags.StringVar(&c.build, "build", "", "shell `command` that builds with -overlay $OVERLAY into $OUT")
	flags.StringVar(&c.run, "run", "", "shell `command` that checks what is in $OUT, as root in the directory $DIR, the only one that it can write: status 0 is a mutant that survived, 1 one that was killed")
	flags.StringVar(&c.work, "work", "", "`directory` of binaries and results; a run continues with what is there (default: a temporary one)")
	flags.StringVar(&c.explained, "explained", "", "`file` of survivors with the reason for each")
	flags.StringVar(&c.skip, "skip", "", "`regexp` of file:function that are not mutated")
	flags.StringVar(&c.without, "without", "", "`files` of the module, with commas, that the program is built without, because that takes less time")
	flags.StringVar(&c.only, "only", "", "`regexp` of what -list prints: run only these")
	flags.StringVar(&c.again, "again", "", "`status` of results that are not taken from a run before, such as survived")
	flags.IntVar(&c.sample, "n", 0, "`number` of mutants, chosen at random; 0: all")
	flags.Uint64Var(&c.seed, "seed", 1, "`number` that determines which")
	flags.IntVar(&c.parallel, "j", runtime.NumCPU(), "`number` of mutants that run side by side")
	flags.DurationVar(&c.timeout, "timeout", 3*time.Minute, "how `long` a build and a run may take")
	flags.BoolVar(&c.list, "list", false, "print the mutants")
	_ = flags.Parse(args) // exits
	if c.packages = flags.Args(); len(c.packages) == 0 {
		c.packages = []string{"./..."}
	}
	all, chosen, err := c.choose()
	if err != nil {
		return false, err
	}
	if c.list {
		for _, m := range chosen {
			fmt.Fprintf(out, "%4d %s %-15s %s: %s\n", m.Number, m.ID, m.Op, m.where(), m.change())
		}
		return true, nil
	}
	known, err := readExplained(c.explained)
	if err != nil {
		return false, err
	}
	if c.build == "" || c.run == "" {
		return false, errors.New("-build and -run are required")
	}
	if c.work == "" {
		if c.work, err = os.MkdirTemp("", "mutate"); err != nil {
			return false, err
		}
		defer os.RemoveAll(c.work)
	}
	if c.work, err = filepath.Abs(c.work); err != nil {
		return false, err
	}
	r := &runner{build: c.build, run: c.run, module: c.module, work: c.work, timeout: c.timeout}
	for _, file := range c.left() {
		path, err := filepath.Abs(filepath.Join(c.module, file))
		if err != nil {
			return false, err
		}
		r.without = append(r.without, path)
	}
	if err := r.open(); err != nil {
		return false, err
	}
	defer r.file.Close()
	if err := r.base(ctx); err != nil {
		return false, err
	}
	results, err := c.runAll(ctx, r, chosen, out)
	if err != nil {
		return false, err
	}
	return report(out, all, results, known), nil
}

// left are the files that are left out.
func (c *config) left() []string {
	return slices.DeleteFunc(strings.Split(c.without, ","), func(s string) bool { return s == "" })
}

// choose returns all mutants, and those that are to be run.
func (c *config) choose() (all, chosen []*mutant, err error) {
	var skip, only *regexp.Regexp
	if c.skip != "" {
		if skip, err = regexp.Compile(c.skip); err != nil {
			return nil, nil, err
		}
	}
	if all, err = mutants(c.module, c.packages, skip); err != nil {
		return nil, nil, err
	}
	all = slices.DeleteFunc(all, func(m *mutant) bool { return slices.Contains(c.left(), m.File) })
	chosen = slices.Clone(all)
	if c.only != "" {
		if only, err = regexp.Compile(c.only); err != nil {
			return nil, nil, err
		}
		chosen = slices.DeleteFunc(chosen, func(m *mutant) bool {
			return !only.MatchString(fmt.Sprintf("%d %s %s %s: %s", m.Number, m.ID, m.Op, m.where(), m.change()))
		})
	}
	if c.sample > 0 && c.sample < len(chosen) {
		rand.New(rand.NewPCG(c.seed, 0)).Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
		chosen = chosen[:c.sample]
		slices.SortFunc(chosen, func(a, b *mutant) int { return cmp.Compare(a.Number, b.Number) })
	}
	return all, chosen, nil
}

// runAll returns the results of the mutants that have one. It ends early, without an error,
// when ctx does.
func (c *config) runAll(ctx context.Context, r *runner, chosen []*mutant, out io.Writer) (map[*mutant]result, error) {
	results := map[*mutant]result{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var wrong error
	work := make(chan *mutant)
	for range c.parallel {
		wg.Go(func() {
			for m := range work {
				x, err := r.try(ctx, m)
				mu.Lock()
				switch {
				case err == nil:
					results[m] = x
					fmt.Fprintf(out, "%d/%d %s %s %s: %s (%.0f s) %s\n", len(results), len(chosen), m.ID, m.where(), m.Op, x.Status, x.Seconds, x.Why)
				case ctx.Err() == nil:
					wrong = errors.Join(wrong, err)
				}
				mu.Unlock()
			}
		})
	}
	for _, m := range chosen {
		if x, ok := r.known(m); ok && string(x.Status) != c.again {
			mu.Lock()
			results[m] = x
			mu.Unlock()
			continue
		}
		select {
		case work <- m:
		case <-ctx.Done():
		}
	}
	close(work)
	wg.Wait()
	return results, wrong
}
