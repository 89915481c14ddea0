package csikit

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	namedTest = regexp.MustCompile("`([a-z/]+)\\.(Test\\w+)`")
	issueLink = regexp.MustCompile(`\[([^\]]+)\]\(([^)]+)\)`)
	issueName = regexp.MustCompile(`^([\w.-]+/[\w.-]+)(?:#(\d+)|@([0-9a-f]{7,40}))$`)
)

// docs/failures.md names a test for each failure: each exists, and names an issue of its
// row, so that a reader of one finds the other.
func TestFailuresAreTested(t *testing.T) {
	text, err := os.ReadFile("docs/failures.md")
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string]map[string]string{}
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 2 || strings.HasPrefix(cells[1], "---") || strings.TrimSpace(cells[1]) == "public issue" {
			continue
		}
		rows++
		if len(cells) != 6 {
			t.Errorf("%d cells, want 4: %s", len(cells)-2, line)
			continue
		}
		issues := issuesIn(t, cells[1])
		tests := namedTest.FindAllStringSubmatch(cells[4], -1)
		if len(tests) == 0 {
			t.Errorf("no test: %s", line)
		}
		for _, m := range tests {
			dir, name := m[1], m[2]
			if packages[dir] == nil {
				packages[dir] = testsOf(t, dir)
			}
			source, exists := packages[dir][name]
			switch {
			case !exists:
				t.Errorf("there is no %s in %s", name, dir)
			case !issues.MatchString(source):
				t.Errorf("%s in %s names none of %s", name, dir, strings.TrimSpace(cells[1]))
			}
		}
	}
	if rows < 30 {
		t.Errorf("only %d failures: has the format of the table changed?", rows)
	}
}

// issuesIn returns an expression that matches any issue in the first cell of a row.
func issuesIn(t *testing.T, cell string) *regexp.Regexp {
	t.Helper()
	for _, m := range issueLink.FindAllStringSubmatch(cell, -1) {
		name := issueName.FindStringSubmatch(m[1])
		if name == nil {
			t.Errorf("%s is not owner/repository#number or owner/repository@commit", m[1])
			continue
		}
		want := "https://github.com/" + name[1] + "/issues/" + name[2] // which leads to a pull request as well
		if name[3] != "" {
			want = "https://github.com/" + name[1] + "/commit/" + name[3]
		}
		if m[2] != want {
			t.Errorf("%s leads to %s, want %s", m[1], m[2], want)
		}
	}
	var names []string
	for name := range strings.SplitSeq(issueLink.ReplaceAllString(cell, "$1"), ",") {
		names = append(names, regexp.QuoteMeta(strings.TrimSpace(name)))
	}
	return regexp.MustCompile(`(?:` + strings.Join(names, "|") + `)(?:\W|$)`)
}

// testsOf returns the source of each test function of a directory, with its comments.
func testsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.FromSlash(dir), "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s: %v", dir, err)
	}
	tests := map[string]string{}
	for _, path := range files {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, source, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil {
				continue
			}
			from := f.Pos()
			if f.Doc != nil {
				from = f.Doc.Pos()
			}
			// An issue may be wrapped over two lines of the comment.
			words := bytes.Fields(source[fset.Position(from).Offset:fset.Position(f.End()).Offset])
			tests[f.Name.Name] = string(bytes.Join(words, []byte(" ")))
		}
	}
	return tests
}
