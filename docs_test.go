package csikit

import (
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	codeBlock  = regexp.MustCompile("(?ms)^ *```.*?^ *```$|<!--.*?-->")
	inlineCode = regexp.MustCompile("`[^`\n]*`")
	pageLink   = regexp.MustCompile(`\]\(<?([^)\s>]+)>?\)`)
	heading    = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *#*$`)
	anchorDrop = regexp.MustCompile(`[^\p{L}\p{N}\p{M}_ -]`)
	anchorName = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
)

// Every link of a page to a file of this tree, and to a heading in one, leads there.
func TestLinks(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "-co", "--exclude-standard", "*.md").Output()
	if err != nil {
		t.Skipf("not a git work tree: %v", err)
	}
	pages := strings.Fields(string(out))
	links := 0
	for _, page := range pages {
		text := readPage(t, page)
		text = inlineCode.ReplaceAllString(codeBlock.ReplaceAllString(text, ""), "code")
		for _, m := range pageLink.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			links++
			path, anchor, _ := strings.Cut(m[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), filepath.FromSlash(path))
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s leads nowhere", page, m[1])
				continue
			}
			if anchor != "" && strings.HasSuffix(target, ".md") && !slices.Contains(anchors(readPage(t, target)), anchor) {
				t.Errorf("%s: %s has no heading #%s", page, target, anchor)
			}
		}
	}
	if t.Logf("%d links in %d pages", links, len(pages)); links < 50 {
		t.Errorf("only %d links found", links)
	}
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// anchors returns the anchors of a page's headings, as GitHub makes them.
func anchors(text string) []string {
	var all []string
	seen := map[string]int{}
	for _, m := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
		title := pageTitle.ReplaceAllString(m[1], "$1")
		a := strings.ReplaceAll(anchorDrop.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		if n := seen[a]; n > 0 {
			all = append(all, a+"-"+string(rune('0'+n)))
		} else {
			all = append(all, a)
		}
		seen[a]++
	}
	for _, m := range anchorName.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// The text of a link in a heading, without its address.
var pageTitle = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)

var (
	usesAction = regexp.MustCompile(`(?m)^ *-? *uses: *(\S+)(.*)$`)
	pinned     = regexp.MustCompile(`^[\w.-]+/[\w./-]+@[0-9a-f]{40}$`)
	runsStep   = regexp.MustCompile(`(?m)^ *-? *run: (.*)$`)
	stageList  = regexp.MustCompile(`stage: \[([^\]]*)\]`)
)

// The workflows pin what they use by hash, run the stages of .ci/run, all of them, or
// targets of make, and have no logic of their own.
func TestWorkflows(t *testing.T) {
	files, err := filepath.Glob(".github/workflows/*.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no workflows: %v", err)
	}
	var all string
	for _, name := range files {
		text := readPage(t, name)
		all += text
		for _, m := range usesAction.FindAllStringSubmatch(text, -1) {
			if !pinned.MatchString(m[1]) || !regexp.MustCompile(`^ # v\d`).MatchString(m[2]) {
				t.Errorf("%s: %s is not pinned as OWNER/NAME@HASH # VERSION", name, m[1])
			}
		}
		for _, m := range runsStep.FindAllStringSubmatch(text, -1) {
			if !regexp.MustCompile(`^sudo (env PATH="\$PATH" HOME="\$HOME" (\.ci/run|make) \$\{\{ matrix\.\w+ \}\}$|chown )`).MatchString(m[1]) {
				t.Errorf("%s runs %q, want .ci/run or make", name, m[1])
			}
		}
		if !strings.Contains(text, "permissions: {contents: read}") {
			t.Errorf("%s: the token may do more than read", name)
		}
	}
	listed := stageList.FindStringSubmatch(all)
	help, err := exec.Command(".ci/run", "-h").Output()
	if err != nil || listed == nil {
		t.Fatalf("stages: %v, %v", listed, err)
	}
	var stages []string
	for line := range strings.Lines(string(help)) {
		if f := strings.Fields(line); len(f) >= 3 && f[1] != "[STAGE...]" && regexp.MustCompile(`^\d+$`).MatchString(f[1]) {
			stages = append(stages, f[0])
		}
	}
	if got := strings.Join(stages, ", "); got != listed[1] {
		t.Errorf("ci.yml runs the stages %s, .ci/run has %s", listed[1], got)
	}
}

// The programs and packages in docs/ compile.
func TestDocsBuild(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	// A module that requires csikit, fastmount and mount-utils, as a driver would.
	for _, name := range []string{"go.mod", "go.sum"} {
		text := strings.ReplaceAll(readPage(t, "test/fastmount/"+name), "=> ../../nodeops", "=> "+here+"/nodeops")
		writeFile(t, filepath.Join(dir, name), strings.ReplaceAll(text, "=> ../..\n", "=> "+here+"\n"), 0o600)
	}
	programs := 0
	pages, err := filepath.Glob("docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		for i, b := range goBlock.FindAllStringSubmatch(readPage(t, page), -1) {
			programs++
			formatted, err := format.Source([]byte(b[1]))
			if err != nil || string(formatted) != b[1] {
				t.Errorf("%s: program %d is not as gofmt has it: %v", page, i+1, err)
			}
			name := strings.TrimSuffix(filepath.Base(page), ".md") + string(rune('a'+i))
			writeFile(t, filepath.Join(dir, name, "x.go"), b[1], 0o600)
		}
	}
	if programs == 0 {
		t.Fatal("no programs")
	}
	goTool(t, dir, "mod", "tidy")
	goTool(t, dir, "vet", "./...")
}
