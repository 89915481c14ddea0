package csitest

import (
	_ "embed"
	"strings"
	"sync"
)

//go:embed coverage.tsv
var coverageTable string

// A Sentence is one of the specification's that require something.
type Sentence struct {
	Key   string   // what it is about, and a hash of its words: ListVolumes-Errors/2d00157b
	Level Level    // the strongest of its key words
	Text  string   // its first 160 characters
	Rules []string // the IDs of the rules that check it; none if no rule does
}

// Sentences returns the sentences of spec.md and csi.proto, in their order.
// docs/reference/spec-coverage.md has more about each.
func Sentences() []Sentence { return sentences() }

var sentences = sync.OnceValue(func() (all []Sentence) {
	for line := range strings.Lines(coverageTable) {
		if cells := strings.Split(strings.TrimRight(line, "\r\n"), "\t"); len(cells) == 7 && !strings.HasPrefix(line, "#") {
			all = append(all, Sentence{Key: cells[0], Level: Level(cells[1]), Text: cells[6], Rules: strings.Fields(cells[3])})
		}
	}
	return all
})

var lowerSentences = sync.OnceValue(func() (all []string) {
	for _, s := range Sentences() {
		all = append(all, strings.ToLower(s.Key+" "+s.Text))
	}
	return all
})

// rulesOfSentences are the IDs of the rules that check a sentence with that text in its key or
// its words, in any case.
func rulesOfSentences(text string) map[string]bool {
	ids := map[string]bool{}
	text = strings.ToLower(text)
	for i, words := range lowerSentences() {
		if strings.Contains(words, text) {
			for _, id := range Sentences()[i].Rules {
				ids[id] = true
			}
		}
	}
	return ids
}
