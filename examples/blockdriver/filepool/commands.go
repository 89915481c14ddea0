package filepool

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/csikit/csikit/examples/blockdriver/storage"
)

// CommandUsage describes init and fsck.
func (p *Provider) CommandUsage() string { return commandUsage }

const commandUsage = `
Commands, each with -pool as above:
  blockdriver init [-once DIR] -pool ...
                                        create pools in directories that are empty or missing.
                                        -once is for a start script: it records in DIR, which
                                        is elsewhere, that a pool was created, and does not create
                                        another one when its file system is not mounted
  blockdriver fsck [-repair] -pool ...  check the pools; with -repair repair what can be
                                        repaired without losing data
`

// Command runs init or fsck.
func (p *Provider) Command(args []string, getenv func(string) string, stdout io.Writer) (ok bool, err error) {
	if len(args) == 0 || args[0] != "init" && args[0] != "fsck" {
		return false, nil
	}
	var pools poolFlags
	flags := flag.NewFlagSet("blockdriver "+args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Var(&pools, "pool", "")
	var repair bool
	var once string
	if args[0] == "fsck" {
		flags.BoolVar(&repair, "repair", false, "")
	} else {
		flags.StringVar(&once, "once", "", "")
	}
	if err := flags.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, strings.TrimPrefix(commandUsage, "\n"))
		return true, err
	} else if err != nil {
		return true, err
	}
	if rest := flags.Args(); len(rest) > 0 {
		return true, fmt.Errorf("unexpected argument %q: pools are named with -pool", rest[0])
	}
	if len(pools.texts) == 0 {
		_ = pools.Set(getenv(envPool))
	}
	if err := pools.parse(); err != nil {
		return true, err
	}
	if len(pools.list) == 0 {
		return true, errNoPool
	}
	if args[0] == "init" {
		return true, initPools(pools.list, once, stdout)
	}
	return true, fsck(pools.list, repair, stdout)
}

func initPools(configs []poolConfig, once string, stdout io.Writer) error {
	for _, c := range configs {
		make := initPool
		if once != "" {
			make = func(dir string) (*pool, error) { return initPoolOnce(dir, once) }
		}
		p, err := make(c.Dir)
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%s is a pool\n", p.dir)
		if err := p.Close(); err != nil {
			return err
		}
	}
	return nil
}

// initPoolOnce is initPool for what runs at each start: a pool that was in dir before,
// as a file in the directory remembered says, is not created again.
func initPoolOnce(dir, remembered string) (*pool, error) {
	at, err := os.OpenRoot(remembered)
	if err != nil {
		return nil, fmt.Errorf("-once: %w", err)
	}
	defer at.Close()
	name := "pool-" + digest(dir)[:halfID]
	if _, err := at.Lstat(name); err == nil {
		p, err := openPool(dir)
		if err != nil {
			err = fmt.Errorf("there was a pool, as %s says: %w", filepath.Join(remembered, name), err)
		}
		return p, err
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("-once: %w", err)
	}
	p, err := initPool(dir)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(writeSynced(at, name, []byte(dir+"\n")), syncDir(at)); err != nil {
		return nil, errors.Join(fmt.Errorf("-once: %w", err), p.Close())
	}
	return p, nil
}

// fsck prints the problems. Its error is storage.ErrReported if any is left.
func fsck(configs []poolConfig, repair bool, stdout io.Writer) error {
	findings, err := checkPools(configs, repair)
	w := tabwriter.NewWriter(stdout, 0, 8, 2, ' ', 0)
	if len(findings) > 0 {
		fmt.Fprintln(w, "POOL\tFILE\tPROBLEM\tWHAT TO DO")
	}
	left, repairable := 0, 0
	for _, f := range findings {
		what := f.Remedy
		switch {
		case f.repaired:
			what = "done: " + what
		case f.Repairable:
			what, repairable = "-repair: "+what, repairable+1
		}
		if !f.repaired {
			left++
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.Pool, f.File, f.Problem, what)
	}
	if err := errors.Join(w.Flush(), err); err != nil {
		return err
	}
	if left == 0 {
		fmt.Fprintln(stdout, "no problems")
		return nil
	}
	fmt.Fprintf(stdout, "%d problems, %d of which -repair can repair\n", left, repairable)
	return storage.ErrReported
}
