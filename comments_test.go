package csikit

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a reader of pkg.go.dev finds: each exported identifier of the packages for users has
// a comment, and each of these packages an example that a reader can run.
func TestDocumented(t *testing.T) {
	found := 0
	for _, pattern := range []string{"*", "nodeops/fastmount", "csitest/*"} {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			p, files := parsePackage(t, dir)
			if p == nil || p.Name == "main" || p.Name == "csikit" {
				continue
			}
			found++
			if p.Doc == "" {
				t.Errorf("package %s has no comment", dir)
			}
			missing := func(comment, name string) {
				if strings.TrimSpace(comment) == "" && token.IsExported(name) {
					t.Errorf("%s.%s has no comment", dir, name)
				}
			}
			values := func(all []*doc.Value) {
				for _, v := range all {
					if v.Doc != "" || v.Decl.Lparen == token.NoPos {
						missing(v.Doc, v.Names[0])
						continue
					}
					for _, s := range v.Decl.Specs { // a block without a comment: each has its own
						if s, ok := s.(*ast.ValueSpec); ok {
							missing(s.Doc.Text()+s.Comment.Text(), s.Names[0].Name)
						}
					}
				}
			}
			funcs := func(all []*doc.Func) {
				for _, f := range all {
					missing(f.Doc, f.Name)
				}
			}
			values(p.Consts)
			values(p.Vars)
			funcs(p.Funcs)
			for _, x := range p.Types {
				missing(x.Doc, x.Name)
				values(x.Consts)
				values(x.Vars)
				funcs(x.Funcs)
				for _, m := range x.Methods {
					switch m.Name {
					case "Error", "String", "Unwrap", "GRPCStatus", "MarshalText", "UnmarshalText", "LogValue": // of an interface that says it
					default:
						missing(m.Doc, x.Name+"."+m.Name)
					}
				}
			}
			runnable := 0
			for _, x := range doc.Examples(files...) {
				if x.Output != "" || x.EmptyOutput {
					runnable++
				}
			}
			if dir == "csitest/nfsd" && len(doc.Examples(files...)) > 0 {
				continue // it needs a kernel with an NFS server
			}
			if t.Logf("%-20s %d examples with output", dir, runnable); runnable == 0 {
				t.Errorf("package %s has no example with output", dir)
			}
		}
	}
	if found < 15 {
		t.Errorf("only %d packages found", found)
	}
}

// parsePackage returns the documentation of a directory's package, and the files of its
// tests; nil if there is none.
func parsePackage(t *testing.T, dir string) (*doc.Package, []*ast.File) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil // a file
	}
	fset := token.NewFileSet()
	var source, tests []*ast.File
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(name, ".go") {
			continue
		}
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "_test.go") {
			tests = append(tests, f)
		} else if !strings.Contains(name, "_other") {
			source = append(source, f)
		}
	}
	if len(source) == 0 {
		return nil, nil
	}
	p, err := doc.NewFromFiles(fset, source, "github.com/csikit/csikit/"+dir)
	if err != nil {
		t.Fatal(err)
	}
	return p, tests
}
