package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// part is a group of tables.
type part struct {
	name string
	run  func(*bench) error
}

var parts = []part{
	{"publish", measurePublish},
	{"mounts", measureMounts},
	{"staging", measureStaging},
}

// bench is one run.
type bench struct {
	dir    string        // of this run
	rounds int           // in which what is compared takes turns
	turn   time.Duration // of each in a round
	short  bool
	tables []*table
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		exit(serve(os.Args[2:]))
	}
	exit(run())
}

func exit(err error) {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	var ended *exec.ExitError
	if errors.As(err, &ended) { // it has said why
		os.Exit(max(ended.ExitCode(), 1))
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

// inside is set in the process that has a mount namespace of its own.
const inside = "CSIKIT_BENCH_DIR"

func run() error {
	names := flag.String("parts", "", "parts to measure, separated by commas: publish, mounts, staging (default all)")
	check := flag.String("check", "", "measure the short form, and fail below the floors in this `file`")
	out := flag.String("o", "", "existing `directory` for RESULTS.md and the plots")
	b := &bench{dir: os.Getenv(inside), rounds: 7, turn: 100 * time.Millisecond}
	flag.IntVar(&b.rounds, "rounds", b.rounds, "rounds per table, at least 5 for the results")
	flag.Parse()
	if b.dir == "" {
		return enter()
	}
	if b.short = *check != ""; b.short { // many short turns, of which one is undisturbed
		b.rounds, b.turn = 15, 40*time.Millisecond
	}
	for name := range strings.SplitSeq(*names, ",") {
		if name != "" && !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return fmt.Errorf("there is no part %q", name)
		}
	}
	fmt.Println(machine())
	for _, p := range parts {
		if *names != "" && !slices.Contains(strings.Split(*names, ","), p.name) {
			continue
		}
		start := time.Now()
		if err := p.run(b); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Printf("-- %s: %.0f s\n", p.name, time.Since(start).Seconds())
	}
	var err error
	if *out != "" {
		err = b.write(*out)
	}
	if *check != "" {
		err = errors.Join(err, b.check(*check))
	}
	return err
}

// enter runs this program again, in a mount namespace of its own, and removes what that leaves.
func enter() error {
	if os.Geteuid() != 0 {
		return errors.New("run it as root: it mounts, in a mount namespace of its own")
	}
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	// Mounts below it end with the namespace, so that this deletes only what is in it.
	defer os.RemoveAll(dir)
	signal.Ignore(os.Interrupt) // the other process ends with it, and then this one
	c := self(os.Args[1:]...)
	c.Env = append(os.Environ(), inside+"="+dir)
	c.Stdin, c.Stdout = os.Stdin, os.Stdout
	return c.Run()
}

// self is this program with a mount namespace of its own, which ends with its parent.
func self(args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", args...)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	return c
}
