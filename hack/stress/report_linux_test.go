package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestFailedTests(t *testing.T) {
	const output = `--- FAIL: TestA (0.1s)
    a_test.go:1: first
--- PASS: TestB (0.1s)
    b_test.go:1: noise
--- FAIL: TestC (0.2s)
    --- FAIL: TestC/sub (0.1s)
        c_test.go:2: second
FAIL
exit status 1
`
	got := failedTests(output, errors.New("exit status 1"))
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, []string{"TestA", "TestC"}) {
		t.Errorf("failed: %q", names)
	}
	if text := strings.Join(got["TestC"], "\n"); !strings.HasSuffix(text, "second") || strings.Contains(text, "noise") {
		t.Errorf("TestC:\n%s", text)
	}
	long := strings.Repeat("line\n", 100) + "panic: test timed out"
	got = failedTests(long, errors.New("exit status 2"))
	if lines := got["(exit status 2)"]; len(got) != 1 || len(lines) != mostLines || lines[mostLines-1] != "panic: test timed out" {
		t.Errorf("%q", got)
	}
}

// A package is run as often as asked, what fails and what is left behind is counted, and
// nothing of it remains.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles three times")
	}
	module, tmp := t.TempDir(), t.TempDir()
	const text = `package p

import ("os"; "os/exec"; "path/filepath"; "testing")

func TestGood(*testing.T) {}

func TestSometimes(t *testing.T) {
	const file = "seen" // in the package's directory
	if _, err := os.Stat(file); err == nil { t.Error("the second time") }
	os.WriteFile(file, nil, 0o600)
}

func TestLeaves(t *testing.T) {
	os.WriteFile(filepath.Join(os.TempDir(), "left"), nil, 0o600)
	c := exec.Command("sleep", "3600")
	if err := c.Start(); err != nil { t.Fatal(err) }
}
`
	for name, text := range map[string]string{"go.mod": "module example.com/p\n\ngo 1.26\n", "p_test.go": text} {
		if err := os.WriteFile(filepath.Join(module, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(module)
	t.Setenv("TMPDIR", tmp)
	t.Setenv("GOWORK", "off")
	for tests, want := range map[string]string{
		"TestGood": " 2        0 ", "TestSometimes": " 2        1 ", "TestLeaves": " 2        2 ",
	} {
		var out strings.Builder
		failed, err := run(t.Context(), []string{"-n", "2", "-j", "1", "-busy", "1", "-quota", "50", "-race=false", "-run", tests + "$"}, &out)
		if err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		if !strings.Contains(out.String(), want) || failed != (tests != "TestGood") {
			t.Errorf("%s: %s", tests, out.String())
		}
		if tests == "TestLeaves" && !strings.Contains(out.String(), "left behind:") {
			t.Errorf("%s: %s", tests, out.String())
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := run(ctx, []string{"-n", "2", "-busy", "0"}, &strings.Builder{}); err == nil {
		t.Error("interrupted, and no error")
	}
	if entries, err := os.ReadDir(tmp); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// The copy of this program that go test starts in place of a test is this test binary.
func TestMain(m *testing.M) {
	if os.Getenv(envKeep) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}
