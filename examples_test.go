package csikit

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// An example pastes into a module of the reader's: it uses nothing of its package's
// tests, and nothing internal.
func TestExamplesAreSelfContained(t *testing.T) {
	files := map[string][]*ast.File{}
	fset := token.NewFileSet()
	for _, pattern := range []string{"*/*_test.go", "*/*/*_test.go"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			files[filepath.Dir(name)] = append(files[filepath.Dir(name)], f)
		}
	}
	found := 0
	for dir, tests := range files {
		if strings.HasPrefix(dir, "internal") {
			continue
		}
		for _, example := range doc.Examples(tests...) {
			found++
			name := dir + ".Example" + example.Name
			if example.Play == nil {
				t.Errorf("%s uses what is declared elsewhere in the tests", name)
				continue
			}
			ast.Inspect(example.Play, func(n ast.Node) bool {
				if i, ok := n.(*ast.ImportSpec); ok && strings.Contains(i.Path.Value, "csikit/internal/") {
					t.Errorf("%s imports %s", name, i.Path.Value)
				}
				return true
			})
		}
	}
	if found < 20 {
		t.Errorf("%d examples found", found)
	}
}
