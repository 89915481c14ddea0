package csitest

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Which rules check which sentence of the specification, and what Kubernetes relies on.
const (
	specCoverage       = "coverage.tsv"
	kubernetesCoverage = "coverage_kubernetes.tsv"
	coveragePage       = "../docs/reference/spec-coverage.md"
)

var updateCoverage = flag.Bool("update", false, "write "+coveragePage)

// A coverageState is how far the rules find violations of a sentence.
type coverageState struct {
	name, title, means string
	rules, note        bool // whether a row has some
}

// The states, as the page shows them, and what a row of each needs.
var coverageStates = []coverageState{
	{"covered", "covered", "rules find a violation wherever the sentence applies", true, false},
	{"partly", "partly", "rules find some violations; the note says which they do not find", true, true},
	{"gap", "gap", "a violation can be seen from outside, and no rule looks for it yet", false, true},
	{"unseen", "not visible", "a violation cannot be seen, or brought about, from outside", false, true},
	{"co", "binds the CO", "the CO or its operator must do it, not the plugin", false, true},
	{"documentation", "documentation", "about documentation and packaging", false, true},
	{"informative", "no requirement", "introduces, repeats or explains others", false, true},
}

// A coverageRow is a line of one of the tables.
type coverageRow struct {
	key    string
	level  string // or the component of Kubernetes that relies on it
	state  string
	rules  []string
	proof  []string // rules whose planted defect violates this very sentence, or tests
	note   string
	text   string // the beginning of the sentence
	source string // of a fact about Kubernetes
}

func readCoverage(t *testing.T, path string) (rows []coverageRow) {
	t.Helper()
	known := map[string]bool{}
	for line := range strings.Lines(readText(t, path)) {
		cells := strings.Split(strings.TrimRight(line, "\r\n"), "\t")
		if strings.HasPrefix(line, "#") {
			continue
		}
		if len(cells) != 7 && len(cells) != 8 {
			t.Fatalf("%s: %d columns, want 7, and the source of what Kubernetes relies on: %s", path, len(cells), line)
		}
		r := coverageRow{cells[0], cells[1], cells[2], strings.Fields(cells[3]), strings.Fields(cells[4]), cells[5], cells[6], strings.Join(cells[7:], "")}
		if known[r.key] {
			t.Errorf("%s: %s is there twice", path, r.key)
		}
		known[r.key] = true
		rows = append(rows, r)
	}
	return rows
}

// Every sentence has a row, and every row a sentence. A change of the specification shows
// here, with the sentences that were added and removed.
func TestCoverageOfTheSpecification(t *testing.T) {
	rows := map[string]coverageRow{}
	for _, r := range readCoverage(t, specCoverage) {
		rows[r.key] = r
	}
	for _, s := range specSentences(t) {
		r, there := rows[s.key]
		switch {
		case !there:
			t.Errorf("%s has no row for\n%s\t%s\t\t\t\t\t%s", specCoverage, s.key, s.level, shortened(s.text))
		case r.text != shortened(s.text) || r.level != s.level:
			t.Errorf("%s: %s is now %s: %s", specCoverage, s.key, s.level, shortened(s.text))
		}
		delete(rows, s.key)
	}
	for _, key := range slices.Sorted(maps.Keys(rows)) {
		t.Errorf("%s: the specification no longer has %s: %s", specCoverage, key, rows[key].text)
	}
}

// shortened is the beginning of a sentence, without half words.
func shortened(text string) string {
	const most = 160
	if len(text) <= most {
		return text
	}
	text = text[:most-3]
	return text[:strings.LastIndex(text, " ")] + " …"
}

// A row names rules and defects that exist, or says why there are none.
func TestCoverageRows(t *testing.T) {
	known, planted := map[string]bool{}, map[string]bool{}
	for _, r := range Rules() {
		known[r.ID] = true
	}
	for _, d := range defects {
		planted[d.breaks] = true
	}
	for id := range elsewhere {
		planted[id] = true
	}
	for _, path := range []string{specCoverage, kubernetesCoverage} {
		for _, r := range readCoverage(t, path) {
			at := path + ": " + r.key
			i := slices.IndexFunc(coverageStates, func(s coverageState) bool { return s.name == r.state })
			if i < 0 {
				t.Errorf("%s has no state, but %q: %s", at, r.state, r.text)
				continue
			}
			state := coverageStates[i]
			if state.rules && len(r.rules) == 0 {
				t.Errorf("%s is %s by no rule: %s", at, state.title, r.text)
			}
			if !state.rules && len(r.rules)+len(r.proof) > 0 {
				t.Errorf("%s has rules, and is %s: %s", at, state.title, r.text)
			}
			if state.note && r.note == "" {
				t.Errorf("%s is %s, and does not say why: %s", at, state.title, r.text)
			}
			for _, id := range r.rules {
				if !known[id] {
					t.Errorf("%s: there is no rule %s", at, id)
				}
			}
			for _, p := range r.proof {
				if dir, test, isTest := strings.Cut(p, ".Test"); isTest {
					if !hasTest(t, filepath.Join("..", dir), "Test"+test) {
						t.Errorf("%s: there is no %s", at, p)
					}
				} else if !planted[p] || !slices.Contains(r.rules, p) {
					t.Errorf("%s: no defect is planted for %s, or it is none of the row's rules", at, p)
				}
			}
		}
	}
}

// hasTest reports whether a package has a test of that name.
func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(f string) bool { return strings.Contains(readText(t, f), "func "+name+"(t ") })
}

// The page is generated from the tables: go test ./csitest -run TestCoveragePage -update
func TestCoveragePage(t *testing.T) {
	page := coverageText(t)
	if *updateCoverage {
		if err := os.WriteFile(coveragePage, page, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if old := readText(t, coveragePage); old != string(page) {
		t.Errorf("%s is not what the tables say: go test ./csitest -run TestCoveragePage -update", coveragePage)
	}
}

// A coverageSection is the rows under one heading.
type coverageSection struct {
	name string
	rows []coverageRow
}

func coverageText(t *testing.T) []byte {
	t.Helper()
	bySection := []coverageSection{}
	add := func(name string, r coverageRow) {
		i := slices.IndexFunc(bySection, func(s coverageSection) bool { return s.name == name })
		if i < 0 {
			i = len(bySection)
			bySection = append(bySection, coverageSection{name: name})
		}
		bySection[i].rows = append(bySection[i].rows, r)
	}
	rows := map[string]coverageRow{}
	for _, r := range readCoverage(t, specCoverage) {
		rows[r.key] = r
	}
	used := map[string]bool{}
	for _, s := range specSentences(t) {
		r := rows[s.key]
		add(s.section, r)
	}
	specSections := len(bySection)
	for _, r := range readCoverage(t, kubernetesCoverage) {
		add("Kubernetes: "+r.level, r)
	}
	var b bytes.Buffer
	b.WriteString(coverageIntro)
	for _, s := range coverageStates {
		fmt.Fprintf(&b, "- **%s**: %s.\n", s.title, s.means)
	}
	b.WriteString("\n## Totals\n\n| section | sentences | covered | of these with a planted defect | partly | gap | not visible | CO | documentation | no requirement |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	writeTotals(&b, "**the specification**", bySection[:specSections])
	writeTotals(&b, "**Kubernetes**", bySection[specSections:])
	for _, s := range bySection {
		writeTotals(&b, s.name, []coverageSection{s})
	}
	for _, state := range []string{"gap", "partly"} {
		fmt.Fprintf(&b, "\n## %s\n\n", map[string]string{"gap": "Gaps", "partly": "What is checked in part only"}[state])
		none := true
		for _, s := range bySection {
			for _, r := range s.rows {
				if r.state == state {
					none = false
					fmt.Fprintf(&b, "- %s, `%s`: %s\n  *%s*\n", s.name, r.key, escaped(r.text), escaped(r.note))
				}
			}
		}
		if none {
			b.WriteString("None.\n")
		}
	}
	for _, s := range bySection {
		source := map[bool]string{true: " source |", false: ""}[strings.HasPrefix(s.name, "Kubernetes: ")]
		fmt.Fprintf(&b, "\n## %s\n\n| | sentence | state | rules | planted defect | note |%s\n|---|---|---|---|---|---|%s\n", s.name, source, map[bool]string{true: "---|"}[source != ""])
		for _, r := range s.rows {
			for _, id := range r.rules {
				used[id] = true
			}
			fmt.Fprintf(&b, "| `%s` %s | %s | %s | %s | %s | %s |", r.key, map[bool]string{true: r.level}[source == ""], escaped(r.text), titleOf(r.state), quoted(r.rules), quoted(r.proof), escaped(r.note))
			if source != "" {
				fmt.Fprintf(&b, " %s |", r.source)
			}
			b.WriteString("\n")
		}
	}
	b.WriteString("\n## Rules beyond these sentences\n\nThey follow from several sentences together, or from failures of drivers.\n\n")
	for _, r := range Rules() {
		if !used[r.ID] {
			fmt.Fprintf(&b, "- `%s`: %s\n", r.ID, r.Title)
		}
	}
	return b.Bytes()
}

const coverageIntro = `# What csicheck checks of the specification

Generated from csitest/coverage.tsv and csitest/coverage_kubernetes.tsv by TestCoveragePage; do not edit.

Every sentence of spec.md and csi.proto with MUST, SHALL, REQUIRED or SHOULD has a row, and so has every row of the tables of errors, which follow from
"the plugin MUST return the specified gRPC error code". A comment that both files have is one sentence. The first column is the key of the
sentence: what it is about, and a hash of its words. The rules are those of ` + "`csicheck -list`" + `; ` + "`csicheck explain RULE`" + ` says more about each. A planted
defect is a driver in the self-tests (TestDefects of csitest, by the rule's name) that violates this very sentence and is found, or a test of the
rule's parts.

`

func titleOf(state string) string {
	for _, s := range coverageStates {
		if s.name == state {
			return s.title
		}
	}
	return state
}

func quoted(names []string) string {
	all := make([]string, len(names))
	for i, n := range names {
		all[i] = "`" + n + "`"
	}
	return strings.Join(all, " ")
}

// escaped is text for a cell of a table.
func escaped(text string) string {
	return strings.NewReplacer("|", "\\|", "<", "&lt;").Replace(text)
}

func writeTotals(b *bytes.Buffer, name string, sections []coverageSection) {
	count := map[string]int{}
	all, proved := 0, 0
	for _, s := range sections {
		for _, r := range s.rows {
			all++
			count[r.state]++
			if r.state == "covered" && len(r.proof) > 0 {
				proved++
			}
		}
	}
	fmt.Fprintf(b, "| %s | %d | %d | %d | %d | %d | %d | %d | %d | %d |\n", cmp.Or(name, "before the first"), all, count["covered"], proved, count["partly"], count["gap"],
		count["unseen"], count["co"], count["documentation"], count["informative"])
}
