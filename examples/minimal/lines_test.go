package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// This driver is read as a whole, so it stays at 500 lines of code: blank lines, comments and
// imports do not count.
func TestLines(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Skipf("the source files are not here: %v", err)
	}
	lines, code := 0, 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
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
		here := 0
		all := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
		for i, line := range all {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") && !skip[i+1] {
				here++
			}
		}
		t.Logf("%-16s %3d lines, %3d of code", name, len(all), here)
		lines, code = lines+len(all), code+here
	}
	t.Logf("%-16s %3d lines, %3d of code", "together", lines, code)
	if code > 500 {
		t.Errorf("%d lines of code, want at most 500", code)
	}
}
