package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// module writes a module of one file.
func module(t *testing.T, source string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.com/m\n\ngo 1.26\n", "main.go": source} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const operated = `package main

import "errors"

type record struct {
	name string
	size int
}

func write(r *record) error { return nil }

func page(all []string, limit int) (some []string, err error) {
	for _, s := range all {
		if len(some) >= limit && limit > 0 {
			return some, errors.New("more")
		}
		some = append(some, s)
	}
	return some, nil
}

func save(name string) (*record, error) {
	r := &record{name: name, size: len(name) - 1}
	defer done()
	if err := write(r); err != nil {
		return nil, err
	}
	done()
	switch name {
	case "a":
		r.size = 1
	}
	return r, write(r)
}

func done() {}

func skipped() error {
	done()
	return nil
}

func main() {}
`

func TestMutants(t *testing.T) {
	dir := module(t, operated)
	all, err := mutants(dir, []string{"."}, regexp.MustCompile(`^main\.go:skipped$`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	ids := map[string]bool{}
	for i, m := range all {
		got = append(got, m.Op+" "+m.change())
		if m.Number != i+1 || ids[m.ID] || m.Func == "skipped" {
			t.Errorf("mutant %d: %+v", i, m)
		}
		ids[m.ID] = true
		if _, err := parser.ParseFile(token.NewFileSet(), "", m.content(), 0); err != nil {
			t.Errorf("%s: %v\n%s", got[i], err, m.content())
		}
		if d := m.diff(); strings.Count(d, "\n    +")+strings.Count(d, "    -") < 2 {
			t.Errorf("%s: %s", got[i], d)
		}
	}
	want := []string{
		"return-early -> if true { return *new([]string), *new(error) };",
		"drop-check len(some) >= limit && limit > 0 -> false && (len(some) >= limit && limit > 0)",
		"always len(some) >= limit && limit > 0 -> true || (len(some) >= limit && limit > 0)",
		"drop-operand len(some) >= limit -> true || (len(some) >= limit)",
		"drop-operand limit > 0 -> (true || (limit > 0))",
		"boundary >= -> >",
		"boundary > -> >=",
		"drop-assignment append(some, s) -> mutantKeep(some, append(some, s))",
		"first-only -> ; break",
		"return-early -> if true { return new(record), *new(error) };",
		"drop-field name -> mutantZero(name)",
		"drop-field len(name) - 1 -> mutantZero(len(name) - 1)",
		"off-by-one 1 -> 0",
		"forget-defer defer done() -> if false { defer done() }",
		"skip-call write(r) -> mutantSkip(func() error { return write(r) })",
		"drop-check err != nil -> false && (err != nil)",
		"skip-call done() -> if false { done() }",
		"drop-case -> if true { break };",
		"drop-assignment 1 -> mutantKeep(r.size, 1)",
		"skip-call write(r) -> mutantSkip(func() error { return write(r) })",
	}
	for i := range got {
		got[i] = strings.Join(strings.Fields(got[i]), " ")
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("mutants:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	// An ID does not depend on what is outside of the function.
	again, err := mutants(module(t, strings.Replace(operated, "type record", "var added = 1 > 0\n\ntype record", 1)), []string{"."}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range again {
		delete(ids, m.ID)
	}
	if len(ids) > 0 {
		t.Errorf("IDs that changed: %v", ids)
	}
}

func TestSample(t *testing.T) {
	c := config{module: module(t, operated), packages: []string{"."}, sample: 5, seed: 3}
	_, one, err := c.choose()
	if err != nil {
		t.Fatal(err)
	}
	_, two, err := c.choose()
	if err != nil {
		t.Fatal(err)
	}
	same := slices.EqualFunc(one, two, func(a, b *mutant) bool { return a.ID == b.ID })
	if len(one) != 5 || !same {
		t.Errorf("%d mutants, the same twice: %t", len(one), same)
	}
}
