package csikit

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// An example directory is a template: copied into a module of its own, it builds,
// tests included.
func TestExamplesBuildByThemselves(t *testing.T) {
	dirs, err := filepath.Glob("examples/*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			out := t.TempDir()
			if err := os.CopyFS(out, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			vetAsModule(t, out)
		})
	}
}

var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// What the README shows is what compiles.
func TestReadmeBuilds(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := goBlock.FindAllSubmatch(readme, -1)
	if len(blocks) == 0 {
		t.Fatal("README.md has no Go code")
	}
	for _, b := range blocks {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "main.go"), b[1], 0o600); err != nil {
			t.Fatal(err)
		}
		vetAsModule(t, dir)
	}
}

// vetAsModule builds and vets a directory as a module that imports this one.
func vetAsModule(t *testing.T, dir string) {
	t.Helper()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(mod), "module github.com/csikit/csikit", "module example.com/mydriver", 1) +
		"\nrequire github.com/csikit/csikit v0.0.0\nreplace github.com/csikit/csikit => " + here + "\n"
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile("go.sum")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.sum"), sum, 0o600); err != nil {
		t.Fatal(err)
	}
	vet := exec.Command("go", "vet", "./...")
	vet.Dir = dir
	vet.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	if out, err := vet.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
