//go:build linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The commands of the README are found, and those that build images are compared with what
// is made.
func TestReadmeCommands(t *testing.T) {
	m, err := buildModule{name: "sidecars"}.parse(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	named := imageNames(m)
	for _, p := range parts {
		if p.readme == "" {
			continue
		}
		driver, _, _ := strings.Cut(p.overlay, "/")
		commands, err := readmeCommands(filepath.Join("../../examples", driver, "README.md"), p.readme, named)
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.Contains(commands[0], "examples/"+p.overlay) {
			t.Errorf("%s: the first command is %q, not one with %s", p.readme, commands[0], p.overlay)
		}
	}

	name := filepath.Join(t.TempDir(), "README.md")
	const text = "# x\n\n## A\n\n```yaml\nno: command\n```\n\n```sh\n# text\ndocker build -t busybox:1.37 .\none \\\n  two\n\nthree # text\n```\n\n## B\n\n```sh\nfour\n```\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readmeCommands(name, "A", map[string]bool{busyboxImage: true})
	if want := []string{"one    two", "three # text"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	for section, named := range map[string]map[string]bool{"A": nil, "C": {busyboxImage: true}} {
		if got, err := readmeCommands(name, section, named); err == nil {
			t.Errorf("section %s: got %q", section, got)
		}
	}
}
