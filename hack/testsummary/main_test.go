package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSummary(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.json": `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: gate root: EPERM\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p","Elapsed":12.5}
`,
		"b.json": `a line of the compiler
{"Action":"output","Package":"q","Test":"TestC/sub","Output":"    q_test.go:9: it is wrong\n"}
{"Action":"fail","Package":"q","Test":"TestC/sub"}
{"Action":"fail","Package":"q","Test":"TestC"}
{"Action":"fail","Package":"q","Elapsed":1}
{"Action":"output","Package":"r","Output":"gate: tests left behind: a mount\n"}
{"Action":"fail","Package":"r","Elapsed":1}
{"Action":"fai`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := read(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if s.print(&out) {
		t.Error("nothing failed")
	}
	const want = `
1 tests passed, 2 failed, 1 were skipped, in 3 packages

slowest packages:
    12.5 s  p
     1.0 s  `
	text := out.String()
	if !strings.HasPrefix(text, want) {
		t.Errorf("begins with %q", text[:min(len(text), len(want))])
	}
	const end = `
skipped:
     1  gate root: EPERM
        to run them: sudo make test

FAILED q TestC/sub
        q_test.go:9: it is wrong

FAILED r 
    gate: tests left behind: a mount
`
	if !strings.HasSuffix(text, end) {
		t.Errorf("ends with\n%s\nwant\n%s", text, end)
	}
	if _, err := read(t.TempDir()); err == nil {
		t.Error("no results, and no error")
	}
}
