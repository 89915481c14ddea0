package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// machine describes what is measured on.
func machine() string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	cpu, mounts := "unknown CPU", 0
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
				cpu = strings.TrimSpace(value)
				break
			}
		}
	}
	if text, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		mounts = bytes.Count(text, []byte{'\n'})
	}
	load, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(load), " ")
	return fmt.Sprintf("Linux %s, %s, %d CPUs, %s, %d mounts present, load %s at the start",
		unix.ByteSliceToString(u.Release[:]), cpu, runtime.NumCPU(), runtime.Version(), mounts, one)
}

// write makes RESULTS.md and the plots.
func (b *bench) write(dir string) error {
	var out strings.Builder
	fmt.Fprintf(&out, "# Speed\n\nMade by `make bench`, which anyone can repeat; see [doc.go](doc.go). Ratios are within one run: what is compared takes turns, "+
		"in %d rounds, and each ratio is the median of those of the rounds, followed by the lowest and the highest. Absolute times are for orientation.\n\n%s.\n", b.rounds, machine())
	if info, ok := debug.ReadBuildInfo(); ok {
		out.WriteString("\nCompared are")
		for _, m := range info.Deps {
			switch m.Path {
			case "k8s.io/mount-utils", "github.com/moby/sys/mountinfo", "google.golang.org/grpc":
				fmt.Fprintf(&out, " %s %s,", m.Path, m.Version)
			}
		}
		out.WriteString(" and csikit of this tree.\n")
	}
	for _, p := range b.plots() {
		if err := p.save(dir); err != nil {
			return fmt.Errorf("%s: %w", p.file, err)
		}
		fmt.Fprintf(&out, "\n![%s](%s)\n", p.title, p.file)
	}
	for _, t := range b.tables {
		if len(t.rows) == 0 {
			continue
		}
		fmt.Fprintf(&out, "\n## %s\n\n`make bench BENCH=%s`. %s\n\n|  | %s |\n|---|%s\n", t.title, t.makes(), t.text,
			strings.Join(t.ways, " | "), strings.Repeat("---:|", len(t.ways)))
		for _, r := range t.rows {
			fmt.Fprintf(&out, "| %s |", r.name)
			for i, c := range r.cells {
				fmt.Fprintf(&out, " %s%s |", duration(c.micros), t.show(i, c))
			}
			out.WriteString("\n")
		}
	}
	return os.WriteFile(filepath.Join(dir, "RESULTS.md"), []byte(out.String()), 0o644)
}

// makes is the part of the program that has made the table.
func (t *table) makes() string {
	switch t.part {
	case "clients", "growth":
		return "publish"
	case "mountinfo":
		return "mounts"
	}
	return t.part
}
