package main

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// mostLines is how much of the output of a failed test is shown.
const mostLines = 30

var failedTest = regexp.MustCompile(`^--- FAIL: (\S+)`)

// failedTests returns the tests that failed with their last lines. Where none is named, as
// after a panic, a timeout or a leak, it is the end of the whole output.
func failedTests(output string, err error) map[string][]string {
	found := map[string][]string{}
	var name string
	lines := strings.Split(strings.TrimRight(output, "\n"), "\n")
	for _, line := range lines {
		if m := failedTest.FindStringSubmatch(line); m != nil {
			name = m[1]
		} else if line == "FAIL" || strings.HasPrefix(line, "--- ") {
			name = ""
		}
		if name != "" {
			found[name] = append(found[name], line)
		}
	}
	if len(found) == 0 {
		found["("+strings.SplitN(err.Error(), "\n", 2)[0]+")"] = lines
	}
	for name, lines := range found {
		found[name] = lines[max(0, len(lines)-mostLines):]
	}
	return found
}

// report prints the table, and after it what failed. It returns whether something did.
func report(results []*result, out io.Writer) (failed bool) {
	fmt.Fprintf(out, "\n%-42s %5s %8s %10s %10s\n", "package", "runs", "failures", "longest", "CPU")
	for _, r := range results {
		fmt.Fprintf(out, "%-42s %5d %8d %8.1f s %8.1f s\n", r.name, r.runs, r.failures, r.longest.Seconds(), r.cpu.Seconds())
		failed = failed || r.failures > 0
	}
	for _, r := range results {
		for _, name := range sortedKeys(r.tests) {
			fmt.Fprintf(out, "\n%s %s: %d of %d runs; the last time:\n", r.name, name, r.tests[name].times, r.runs)
			for _, line := range r.tests[name].lines {
				fmt.Fprintf(out, "    %s\n", line)
			}
		}
	}
	return failed
}

func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}
