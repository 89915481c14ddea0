package csitest

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A sentence of the specification that requires something.
type sentence struct {
	key     string // what it is about, and a hash of its words: stable while the text is
	section string // the RPC, message or chapter, for the totals
	level   string // the strongest of its key words
	text    string // in one line
}

// specSentences splits spec.md and csi.proto of the module into sentences. A comment that
// both have is one sentence; its key names the message and the field.
func specSentences(t *testing.T) []sentence {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/container-storage-interface/spec").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSpace(string(out))
	split := splitter{known: map[string]bool{}}
	split.markdown(readText(t, filepath.Join(dir, "spec.md")))
	split.section = "csi.proto only"
	split.proto(readText(t, filepath.Join(dir, "csi.proto")))
	return split.sentences
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// keyWords are those of RFC 2119 that require something.
var keyWords = regexp.MustCompile(`\b(MUST|SHALL|REQUIRED|SHOULD)( NOT)?\b`)

type splitter struct {
	section   string
	known     map[string]bool
	sentences []sentence
}

// add takes the words of one sentence, or of one row of a table.
func (s *splitter) add(about, text, level string) {
	text = strings.Join(strings.Fields(text), " ")
	if level == "" {
		level = levelOf(text)
	}
	if level == "" {
		return
	}
	key := fmt.Sprintf("%s/%x", about, sha256.Sum256([]byte(text)))[:len(about)+9]
	if s.known[key] {
		return
	}
	s.known[key] = true
	s.sentences = append(s.sentences, sentence{key: key, section: s.section, level: level, text: text})
}

// levelOf returns the strongest key word, MUST for its synonyms; none is "".
func levelOf(text string) (level string) {
	for _, m := range keyWords.FindAllStringSubmatch(text, -1) {
		if m[1] != "SHOULD" {
			return "MUST"
		}
		level = "SHOULD"
	}
	return level
}

var (
	// heading is a line that begins a chapter.
	heading = regexp.MustCompile("^(#+) (.*)$")
	// listItem begins a bullet or a numbered item.
	listItem = regexp.MustCompile(`^\s*([-*]|\d+[.)]|\([a-z0-9]\)|[a-z]\)) `)
	// sentenceEnd is a full stop that no abbreviation ends with, and what may begin a sentence.
	sentenceEnd = regexp.MustCompile("([a-z0-9_)`*\"'\\]][.!?:]?[)\"`*]*[.!?]) +([A-Z(`*\"'\\[])")
	abbreviated = regexp.MustCompile(`\b(e\.g|i\.e|etc|vs)\. `)
)

// paragraph splits the lines of a paragraph.
func (s *splitter) paragraph(about string, lines []string) {
	text := abbreviated.ReplaceAllStringFunc(strings.Join(lines, " "), func(a string) string {
		return strings.TrimSuffix(a, " ") + "\x00"
	})
	text = sentenceEnd.ReplaceAllString(text, "$1\n$2")
	for part := range strings.SplitSeq(text, "\n") {
		s.add(about, strings.ReplaceAll(part, "\x00", " "), "")
	}
}

// paragraphs splits text at blank lines and where an item of a list begins.
func (s *splitter) paragraphs(about string, lines []string) {
	var now []string
	for _, line := range append(lines, "") {
		if line = strings.TrimRight(line, " "); line == "" || listItem.MatchString(line) {
			s.paragraph(about, now)
			now = nil
			line = listItem.ReplaceAllString(line, "")
		}
		if line != "" {
			now = append(now, line)
		}
	}
}

// markdown splits spec.md: prose by chapter, tables by row, and the blocks of protobuf.
func (s *splitter) markdown(text string) {
	var prose, block []string
	about, inBlock, isProto, row, errors := "", false, false, 0, false
	flush := func() { s.paragraphs(about, prose); prose = nil }
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		isTable := !inBlock && strings.HasPrefix(strings.TrimSpace(line), "|")
		if !isTable {
			row = 0
		}
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			flush()
			if inBlock && isProto {
				s.proto(strings.Join(block, "\n"))
			}
			inBlock, isProto, block = !inBlock, strings.HasPrefix(strings.TrimSpace(line), "```protobuf"), nil
		case inBlock:
			block = append(block, line)
		case heading.MatchString(line):
			flush()
			m := heading.FindStringSubmatch(line)
			about = strings.ReplaceAll(m[2], "`", "")
			if len(m[1]) <= 4 { // the subsections of an RPC are part of it
				s.section = strings.TrimSuffix(about, " Errors")
			}
			about = strings.ReplaceAll(about, " ", "-")
		case isTable:
			flush()
			row++
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
			if row == 1 {
				errors = strings.Contains(line, "gRPC Code")
			}
			if row <= 2 {
				break
			}
			for i := range cells {
				cells[i] = strings.Join(strings.Fields(cells[i]), " ")
			}
			if errors { // each row follows from "the plugin MUST return the specified gRPC error code"
				s.add(about, strings.Join(cells, " | "), "MUST")
				break
			}
			s.add(about, strings.Join(cells, " | "), "")
		default:
			prose = append(prose, line)
		}
	}
	flush()
}

var (
	protoScope = regexp.MustCompile(`^\s*(message|enum|service|oneof|extend)\s+([\w.]+)\s*\{`)
	protoField = regexp.MustCompile(`^\s*(?:rpc\s+(\w+)|(?:[\w.<>, ]+\s)?(\w+)\s*=\s*\d+)`)
)

// proto splits comments; they belong to the declaration behind them.
func (s *splitter) proto(text string) {
	var scope, comment []string
	section := s.section
	flush := func(name string) {
		about := strings.Join(append(scope[:len(scope):len(scope)], name), ".")
		s.paragraphs(strings.Trim(about, "."), comment)
		comment = nil
	}
	for line := range strings.Lines(text) {
		code, after, has := strings.Cut(strings.TrimRight(line, "\n"), "//")
		if has && strings.TrimSpace(code) == "" {
			comment = append(comment, strings.TrimPrefix(after, " "))
			continue
		}
		if m := protoScope.FindStringSubmatch(code); m != nil {
			flush(m[2])
			if !strings.Contains(code, "}") {
				scope = append(scope, m[2])
			}
			continue
		}
		if strings.Contains(code, "{") {
			name := ""
			if m := protoField.FindStringSubmatch(code); m != nil {
				name = m[1] + m[2]
			}
			flush(name)
			scope = append(scope, name)
		}
		if m := protoField.FindStringSubmatch(code); m != nil && !strings.Contains(code, "{") {
			flush(m[1] + m[2])
		}
		if has {
			comment = append(comment, strings.TrimPrefix(after, " "))
		}
		for range strings.Count(code, "}") {
			flush("")
			if len(scope) > 0 {
				scope = scope[:len(scope)-1]
			}
		}
	}
	flush("")
	s.section = section
}
