package csispec

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// shortestSecret is the length below which a value is not masked in other
	// text: it would occur everywhere.
	shortestSecret = 4
	// maxRedacted bounds a text, and maxPatterns what is searched for in it, in bytes: with
	// them, time and memory.
	maxRedacted = 64 << 10
	maxPatterns = 256 << 10
	// maxEscapes is how many escapings of a text are undone, one after the other.
	maxEscapes = 3
	// longestEscape is the length of a \u sequence for a pair of surrogates.
	longestEscape = 12
)

// RedactText masks the values in text that are masked in the rendered message, except user
// names: see [Secrets.RedactText].
func (r Redacted) RedactText(text string) string {
	var s Secrets
	s.Take(r.message, r.keys...)
	return s.RedactText(text)
}

// truncateText bounds a text, and says in omitted how much it has removed.
func truncateText(text string) (kept, omitted string) {
	if len(text) <= maxRedacted {
		return text, ""
	}
	end := maxRedacted
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end], fmt.Sprintf("... (%d bytes more)", len(text)-end)
}

// patterns are strings to find all at once, in time linear in the text: an automaton of
// Aho and Corasick. Each node is a prefix of a pattern; node 0 is the empty one.
type patterns struct {
	nodes []prefix
	edges map[edge]int32
	first [256]int32 // the edges of node 0

	textLen   int
	truncated bool // the text ends where it was truncated
}

type prefix struct {
	edge         // to this node
	depth  int32 // its length
	suffix int32 // the longest proper suffix that is a node as well
	match  int32 // length of the longest suffix, or all of it, that is a pattern; or 0
}

type edge struct {
	from int32
	by   byte
}

func newPatterns(textLen int, truncated bool) *patterns {
	return &patterns{nodes: make([]prefix, 1, 64), edges: map[edge]int32{}, textLen: textLen, truncated: truncated}
}

// add adds a string to find; false if that would be too many.
func (p *patterns) add(s string) bool {
	if len(s) < shortestSecret || len(s) > p.textLen && !p.truncated {
		return true
	}
	n := int32(0)
	for i := range min(len(s), p.textLen) {
		e := edge{n, same(s[i])}
		next := p.next(e)
		if next == 0 {
			if len(p.nodes) > maxPatterns {
				return false
			}
			next = int32(len(p.nodes))
			if n == 0 {
				p.first[e.by] = next
			} else {
				p.edges[e] = next
			}
			p.nodes = append(p.nodes, prefix{edge: e, depth: int32(i + 1)})
		}
		n = next
	}
	if len(s) <= p.textLen {
		p.nodes[n].match = int32(len(s))
	}
	return true
}

// same maps a space to the plus that stands for it in the query of a URL.
func same(b byte) byte {
	if b == ' ' {
		return '+'
	}
	return b
}

// link completes the automaton: it sets suffix and match of every node.
func (p *patterns) link() {
	order := make([]int32, len(p.nodes))
	for i := range order {
		order[i] = int32(i)
	}
	// What a node links to is shorter.
	slices.SortFunc(order, func(a, b int32) int { return int(p.nodes[a].depth) - int(p.nodes[b].depth) })
	for _, i := range order[1:] {
		n := &p.nodes[i]
		if n.from != 0 {
			n.suffix = p.step(p.nodes[n.from].suffix, n.by)
		}
		n.match = max(n.match, p.nodes[n.suffix].match)
	}
}

// step returns the longest suffix of node n and b that is a node.
func (p *patterns) step(n int32, b byte) int32 {
	for {
		if next := p.next(edge{n, b}); next != 0 || n == 0 {
			return next
		}
		n = p.nodes[n].suffix
	}
}

// next returns where an edge leads, or 0.
func (p *patterns) next(e edge) int32 {
	if e.from == 0 {
		return p.first[e.by]
	}
	return p.edges[e]
}

// redact masks all patterns in text.
func (p *patterns) redact(text string) string {
	if len(p.nodes) == 1 {
		return text
	}
	p.link()
	m := marks{at: make([]int32, len(text)+1)}
	p.find(verbatim(text), maxEscapes, &m)
	return m.replace(text)
}

// find marks the patterns in v, and in what v is an escaped form of.
func (p *patterns) find(v view, escapes int, m *marks) {
	n := int32(0)
	for i := range len(v.text) {
		if c := v.text[i]; p.truncated && len(v.text)-i < longestEscape && (c == '\\' || c == '%') { // perhaps not all of it
			m.mark(v.at[i-int(p.nodes[n].depth)], v.at[len(v.text)])
		}
		n = p.step(n, same(v.text[i]))
		if length := p.nodes[n].match; length > 0 {
			m.mark(v.at[i+1-int(length)], v.at[i+1])
		}
	}
	if p.truncated { // perhaps within a pattern
		m.mark(v.at[len(v.text)-int(p.nodes[n].depth)], v.at[len(v.text)])
	}
	if escapes == 0 {
		return
	}
	if strings.IndexByte(v.text, '\\') >= 0 {
		p.find(v.decoded(backslash), escapes-1, m)
	}
	if strings.IndexByte(v.text, '%') >= 0 {
		p.find(v.decoded(percent), escapes-1, m)
	}
}

// marks are the bytes of a text to replace: at every index, how many ranges begin there
// less those that end there.
type marks struct {
	at  []int32
	any bool
}

func (m *marks) mark(from, to int32) {
	m.at[from]++
	m.at[to]--
	m.any = m.any || from < to
}

// replace puts one mask in place of adjacent marked bytes.
func (m *marks) replace(text string) string {
	if !m.any {
		return text
	}
	var b strings.Builder
	depth := int32(0)
	for i := range len(text) {
		before := depth
		depth += m.at[i]
		switch {
		case depth == 0:
			b.WriteByte(text[i])
		case before == 0:
			b.WriteString(mask)
		}
	}
	return b.String()
}
