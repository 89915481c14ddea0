package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// A mutant is one change of one file.
type mutant struct {
	Number     int
	ID         string // stays the same while its function does not change
	Op         string // the name of the operator
	File       string // relative to the directory of the mutated module
	Line       int
	Func       string
	start, end int // offsets of what is replaced
	text       string
	source     *source
}

// A source is a file that is mutated.
type source struct {
	path    string // absolute
	content []byte
	sum     string
	dir     string // of the package
	pkg     string // its name
}

func (m *mutant) old() string { return string(m.source.content[m.start:m.end]) }

// content is the mutated file.
func (m *mutant) content() []byte {
	c := m.source.content
	return slices.Concat(c[:m.start], []byte(m.text), c[m.end:])
}

// where is the position, and the function.
func (m *mutant) where() string { return fmt.Sprintf("%s:%d %s", m.File, m.Line, m.Func) }

// change shows the mutation in one line.
func (m *mutant) change() string {
	short := func(s string) string {
		s = strings.Join(strings.Fields(s), " ")
		if r := []rune(s); len(r) > 70 {
			s = string(r[:67]) + "..."
		}
		return s
	}
	return short(m.old()) + " -> " + short(m.text)
}

// diff shows the lines that differ.
func (m *mutant) diff() string {
	lines := func(content []byte, end int) []string {
		from := bytes.LastIndexByte(content[:m.start], '\n') + 1
		to := len(content)
		if i := bytes.IndexByte(content[end:], '\n'); i >= 0 {
			to = end + i
		}
		return strings.Split(string(content[from:to]), "\n")
	}
	before, after := lines(m.source.content, m.end), lines(m.content(), m.start+len(m.text))
	same := 0
	for same < min(len(before), len(after)) && before[same] == after[same] {
		same++
	}
	tail := 0
	for tail < min(len(before), len(after))-same && before[len(before)-1-tail] == after[len(after)-1-tail] {
		tail++
	}
	var b strings.Builder
	for _, l := range before[same : len(before)-tail] {
		fmt.Fprintf(&b, "    -%s\n", l)
	}
	for _, l := range after[same : len(after)-tail] {
		fmt.Fprintf(&b, "    +%s\n", l)
	}
	return b.String()
}

// helpers is added to each package whose mutants use it. What it wraps stays in use, so that
// the compiler accepts the mutant.
const helpers = `package %s

func mutantZero[T any](T) (zero T)     { return }
func mutantSkip(func() error) error    { return nil }
func mutantKeep[T any](old, _ T) T     { return old }
`

// mutants returns those of the packages, in the order of the files, without the functions
// that skip matches.
func mutants(dir string, patterns []string, skip *regexp.Regexp) ([]*mutant, error) {
	root, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	pkgs, err := packages.Load(&packages.Config{Dir: root, Mode: packages.LoadSyntax, Env: append(os.Environ(), "GOWORK=off")}, patterns...)
	if err != nil {
		return nil, err
	}
	var all []*mutant
	for _, p := range pkgs {
		if len(p.Errors) > 0 {
			return nil, fmt.Errorf("%s: %w", p.PkgPath, p.Errors[0])
		}
		for i, file := range p.Syntax {
			path := p.CompiledGoFiles[i]
			content, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return nil, err
			}
			sum := sha256.Sum256(content)
			s := &source{path, content, fmt.Sprintf("%x", sum[:6]), filepath.Dir(path), p.Name}
			all = append(all, mutantsOf(p.Fset, p.TypesInfo, file, name, s, skip)...)
		}
	}
	slices.SortStableFunc(all, func(a, b *mutant) int {
		if c := strings.Compare(a.File, b.File); c != 0 {
			return c
		}
		return a.start - b.start
	})
	seen := map[string]int{}
	for i, m := range all {
		key := strings.Join([]string{m.File, m.Func, m.Op, m.old(), m.text}, "\x00")
		seen[key]++
		sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d", key, seen[key]))
		m.Number, m.ID = i+1, fmt.Sprintf("%x", sum[:4])
	}
	return all, nil
}

func mutantsOf(fset *token.FileSet, info *types.Info, file *ast.File, name string, s *source, skip *regexp.Regexp) (all []*mutant) {
	offset := func(p token.Pos) int { return fset.Position(p).Offset }
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		fn := f.Name.Name
		if f.Recv != nil {
			fn = strings.TrimPrefix(string(s.content[offset(f.Recv.List[0].Type.Pos()):offset(f.Recv.List[0].Type.End())]), "*") + "." + fn
		}
		if skip != nil && skip.MatchString(name+":"+fn) {
			continue
		}
		o := &operators{info: info, text: func(n ast.Node) string { return string(s.content[offset(n.Pos()):offset(n.End())]) }}
		o.emit = func(op string, from, to token.Pos, text string) {
			all = append(all, &mutant{Op: op, File: name, Line: fset.Position(from).Line, Func: fn, start: offset(from), end: offset(to), text: text, source: s})
		}
		o.function(f)
	}
	return all
}
