package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

const commandUsage = `
Commands, each with -pool as above:
  blockdriver init -pool ...            make pools of empty directories
  blockdriver fsck [-repair] -pool ...  look for what is wrong in the pools; -repair: and do
                                        about it what cannot lose anything
`

// errProblems ends the process with status 1, without another word.
var errProblems = errors.New("problems were found")

// runCommand runs init or fsck; ok is false for anything else.
func runCommand(args []string, getenv func(string) string, stdout io.Writer) (ok bool, err error) {
	if len(args) == 0 || args[0] != "init" && args[0] != "fsck" {
		return false, nil
	}
	var pools poolFlags
	fs := flag.NewFlagSet("blockdriver "+args[0], flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Var(&pools, "pool", "")
	repair := args[0] == "fsck" && fs.Bool("repair", false, "") != nil
	if err := fs.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, strings.TrimPrefix(commandUsage, "\n"))
		return true, err
	} else if err != nil {
		return true, err
	}
	if rest := fs.Args(); len(rest) > 0 {
		return true, fmt.Errorf("unexpected argument %q: pools are named with -pool", rest[0])
	}
	if len(pools.texts) == 0 {
		_ = pools.Set(getenv(envName("pool")))
	}
	if err := pools.parse(); err != nil {
		return true, err
	}
	if len(pools.list) == 0 {
		return true, errors.New("-pool is required, for instance -pool /var/lib/blockdriver")
	}
	if args[0] == "init" {
		return true, initPools(pools.list, stdout)
	}
	repair = repair && fs.Lookup("repair").Value.String() == "true"
	return true, fsck(pools.list, repair, stdout)
}

func initPools(configs []poolConfig, stdout io.Writer) error {
	for _, c := range configs {
		p, err := initPool(c.Dir)
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

// fsck prints what is wrong. Its error is errProblems if something is, and stays.
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
		fmt.Fprintln(stdout, "nothing is wrong")
		return nil
	}
	fmt.Fprintf(stdout, "%d problems, %d of which -repair can solve\n", left, repairable)
	return errProblems
}
