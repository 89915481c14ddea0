package csikit

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// An example directory is a template: copied into a separate module, it builds, and its
// tests that need no root pass.
func TestExamplesStandAlone(t *testing.T) {
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
			here, err := os.Getwd()
			if err != nil {
				t.Fatal(err)
			}
			// The release that go.mod requires stands here for what it will be.
			goTool(t, out, "mod", "edit", "-module=example.com/mydriver", "-replace=github.com/csikit/csikit="+here)
			goTool(t, out, "vet", "./...")
			runTests(t, out)
		})
	}
}

// runTests runs the tests of a module; as root, under the user nobody.
func runTests(t *testing.T, module string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "x") // short: sockets are created in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	tmp := filepath.Join(dir, "t")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(tmp, 0o777)); err != nil {
		t.Fatal(err)
	}
	goTool(t, module, "test", "-c", "-o", dir+string(filepath.Separator), "./...")
	tests, err := filepath.Glob(filepath.Join(dir, "*.test*"))
	if err != nil || len(tests) == 0 {
		t.Fatalf("no tests: %v", err)
	}
	for _, test := range tests {
		args := []string{test, "-test.short", "-test.timeout=5m"}
		if os.Geteuid() == 0 {
			args = append([]string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}, args...)
		}
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = tmp
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + tmp}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", filepath.Base(test), err, out)
		}
		t.Logf("%s: %s", filepath.Base(test), bytes.TrimSpace(out))
	}
}

var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// The Go code in README.md compiles.
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
		asModule(t, dir)
		goTool(t, dir, "vet", "./...")
	}
}

// asModule makes a directory a module that imports this one.
func asModule(t *testing.T, dir string) {
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
}

// goTool runs the go command in a module.
func goTool(t *testing.T, dir string, args ...string) {
	t.Helper()
	goOutput(t, dir, args...)
}

// goOutput is goTool that returns what the command printed.
func goOutput(t *testing.T, dir string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v: %s%s", strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return out
}
