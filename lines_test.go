package csikit

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is there to be read as a whole stays small: blank lines, comments and imports do not
// count.
func TestLines(t *testing.T) {
	for pattern, most := range map[string]int{
		"examples/minimal/*.go":                  500,
		"examples/blockdriver/memory/backend.go": 150,
	} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		lines, code := 0, 0
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			all, here := countLines(t, name)
			t.Logf("%-40s %3d lines, %3d of code", name, all, here)
			lines, code = lines+all, code+here
		}
		if t.Logf("%-40s %3d lines, %3d of code", pattern, lines, code); code > most {
			t.Errorf("%s: %d lines of code, want at most %d", pattern, code, most)
		}
	}
}

func countLines(t *testing.T, name string) (lines, code int) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, data, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	skip := map[int]bool{fset.Position(file.Package).Line: true}
	for _, decl := range file.Decls {
		if d, ok := decl.(*ast.GenDecl); ok && d.Tok == token.IMPORT {
			for i := fset.Position(d.Pos()).Line; i <= fset.Position(d.End()).Line; i++ {
				skip[i] = true
			}
		}
	}
	all := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	for i, line := range all {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") && !skip[i+1] {
			code++
		}
	}
	return len(all), code
}
