// Command testsummary reads what go test -json has written, in all files of a directory, and
// prints one summary: the tests, what was skipped by reason and with the command that runs
// it, the slowest packages, and last what failed.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: testsummary DIRECTORY")
		os.Exit(2)
	}
	s, err := read(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsummary:", err)
		os.Exit(2)
	}
	if !s.print(os.Stdout) {
		os.Exit(1)
	}
}

// An event is one of go tool test2json.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

type test struct{ pkg, name string }

type summary struct {
	outcome map[test]string // pass, fail or skip; of a package with an empty name
	output  map[test]*strings.Builder
	seconds map[string]float64 // of a package
}

func read(dir string) (*summary, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no results in %s", dir)
	}
	s := &summary{map[test]string{}, map[test]*strings.Builder{}, map[string]float64{}}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		err = s.add(file)
		if err := errors.Join(err, file.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return s, nil
}

func (s *summary) add(from io.Reader) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // the last line is whole, or go test was killed
		}
		if err != nil {
			return err
		}
		var e event
		if json.Unmarshal(line, &e) != nil {
			continue // of a compiler
		}
		t := test{e.Package, e.Test}
		switch e.Action {
		case "output":
			if s.output[t] == nil {
				s.output[t] = &strings.Builder{}
			}
			s.output[t].WriteString(e.Output)
		case "pass", "fail", "skip":
			if s.outcome[t] != "fail" { // of a package that is tested twice
				s.outcome[t] = e.Action
			}
			if e.Test == "" {
				s.seconds[e.Package] += e.Elapsed
			}
		}
	}
}

// The commands that run what a gate or a test has skipped, by the beginning of the reason.
var commands = []struct{ reason, command string }{
	{"gate root", "sudo make test"},
	{"gate userns", "sudo make test"},
	{"gate capability", "sudo make test, outside of a container"},
	{"gate tools", "sudo hack/tools.sh test"},
	{"gate modules", "make test-vm"},
	{"needs root", "sudo make test"},
}

// reason is the text of t.Skip: it is printed behind a file name and a line number.
var reason = regexp.MustCompile(`^\s*\S+_test\.go:\d+: (.*)$|^\s*\S+\.go:\d+: (.*)$`)

func (s *summary) reason(t test) string {
	why := "no reason given"
	if out := s.output[t]; out != nil {
		for line := range strings.Lines(out.String()) {
			if m := reason.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
				why = m[1] + m[2]
			}
		}
	}
	return why
}

// print reports whether nothing failed.
func (s *summary) print(w io.Writer) bool {
	count := map[string]int{}
	skipped := map[string]int{}
	var failed []test
	for t, outcome := range s.outcome {
		if t.name == "" {
			if outcome == "fail" && !s.namesFailure(t.pkg) {
				failed = append(failed, t) // it did not compile, panicked or left something behind
			}
			continue
		}
		count[outcome]++
		switch outcome {
		case "skip":
			skipped[s.reason(t)]++
		case "fail":
			if !s.hasFailedSubtest(t) {
				failed = append(failed, t)
			}
		}
	}
	fmt.Fprintf(w, "\n%d tests passed, %d failed, %d were skipped, in %d packages\n", count["pass"], count["fail"], count["skip"], len(s.seconds))

	fmt.Fprintln(w, "\nslowest packages:")
	for i, pkg := range slices.SortedFunc(maps.Keys(s.seconds), func(a, b string) int { return cmp.Compare(s.seconds[b], s.seconds[a]) }) {
		if i < 8 {
			fmt.Fprintf(w, "  %6.1f s  %s\n", s.seconds[pkg], pkg)
		}
	}
	if len(skipped) > 0 {
		fmt.Fprintln(w, "\nskipped:")
	}
	for _, why := range slices.Sorted(maps.Keys(skipped)) {
		fmt.Fprintf(w, "  %4d  %s\n", skipped[why], why)
		for _, c := range commands {
			if strings.HasPrefix(why, c.reason) {
				fmt.Fprintf(w, "        to run them: %s\n", c.command)
				break
			}
		}
	}
	slices.SortFunc(failed, func(a, b test) int { return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.name, b.name)) })
	for _, t := range failed {
		fmt.Fprintf(w, "\nFAILED %s %s\n", t.pkg, t.name)
		if out := s.output[t]; out != nil {
			lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
			for _, line := range lines[max(0, len(lines)-30):] {
				fmt.Fprintf(w, "    %s\n", line)
			}
		}
	}
	return len(failed) == 0
}

func (s *summary) namesFailure(pkg string) bool {
	for t, outcome := range s.outcome {
		if t.pkg == pkg && t.name != "" && outcome == "fail" {
			return true
		}
	}
	return false
}

func (s *summary) hasFailedSubtest(of test) bool {
	for t, outcome := range s.outcome {
		if t.pkg == of.pkg && strings.HasPrefix(t.name, of.name+"/") && outcome == "fail" {
			return true
		}
	}
	return false
}
