package csispec

import (
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
)

// shortestSecret is the length below which a value is not masked in other
// text: it would occur everywhere.
const shortestSecret = 4

// RedactText masks in text every value of at least four bytes that is masked in the rendered
// message, except user names, both verbatim and as Go, JSON or a URL would quote it. It
// is meant for the text of an error that may echo its request, in a log or in a
// status. Single lines of a value and the strings within a JSON value are masked too.
func (r Redacted) RedactText(text string) string {
	if text == "" || r.isNil() {
		return text
	}
	// All occurrences are marked before any is replaced, because secrets may
	// overlap.
	var marked []bool
	visit(secretSink{keys: r.keys, found: func(v string) {
		for _, form := range forms(v) {
			if len(form) < shortestSecret {
				continue
			}
			for at := 0; ; at++ {
				i := strings.Index(text[at:], form)
				if i < 0 {
					break
				}
				if marked == nil {
					marked = make([]bool, len(text))
				}
				at += i
				for j := range len(form) {
					marked[at+j] = true
				}
			}
		}
	}}, r.message)
	if marked == nil {
		return text
	}
	var b strings.Builder
	for i := range len(text) {
		switch {
		case !marked[i]:
			b.WriteByte(text[i])
		case i == 0 || !marked[i-1]:
			b.WriteString(mask)
		}
	}
	return b.String()
}

// A secretSink calls found for every secret value of a message.
type secretSink struct {
	keys  []string
	found func(string)
}

func (s secretSink) masks(key string) bool { return masked(key, s.keys) }

func (s secretSink) entries(_ string, m map[string]string) {
	for k, v := range m {
		if masked(k, s.keys) {
			s.found(v)
		}
	}
}

func (s secretSink) secrets(_ string, m map[string]string) {
	for _, v := range m {
		s.found(v)
	}
}

func (s secretSink) flags(_ string, vs []string) {
	for i, v := range vs {
		if follows(vs, i) {
			s.found(v)
		}
		flagSecrets(v, s.found)
	}
}

func (s secretSink) list(_ string, n int, each func(sink, int)) {
	for i := range n {
		each(s, i)
	}
}

func (s secretSink) secret(_, v string)       { s.found(v) }
func (secretSink) text(_, _ string)           {}
func (secretSink) integer(string, int64)      {}
func (secretSink) boolean(string, bool)       {}
func (secretSink) enum(string, int32, string) {}
func (secretSink) texts(string, []string)     {}
func (secretSink) open(string)                {}
func (secretSink) close()                     {}

func flagSecrets(flag string, f func(string)) {
	for {
		_, secret, after := cutSecret(flag, false)
		if secret == "" {
			return
		}
		f(secret)
		// The text after a comma may be another option, and the user information of a
		// URL has a password after its colon.
		for _, sep := range []string{",", ":"} {
			if a, b, found := strings.Cut(secret, sep); found {
				f(a)
				f(b)
			}
		}
		flag = after
	}
}

// forms returns the encodings in which a secret value may occur in a text.
func forms(v string) []string {
	all := []string{v}
	for line := range strings.Lines(v) {
		all = append(all, strings.TrimSpace(line))
	}
	if strings.HasPrefix(v, "{") || strings.HasPrefix(v, "[") {
		var doc any
		if json.Unmarshal([]byte(v), &doc) == nil {
			all = leaves(doc, all)
		}
	}
	for _, s := range all {
		quoted := strconv.Quote(s)
		inJSON := string(appendQuoted(nil, s))
		all = append(all, quoted[1:len(quoted)-1], inJSON[1:len(inJSON)-1], url.QueryEscape(s), url.PathEscape(s))
	}
	return all
}

// leaves appends the strings within a JSON document.
func leaves(doc any, to []string) []string {
	switch d := doc.(type) {
	case string:
		to = append(to, d)
	case []any:
		for _, e := range d {
			to = leaves(e, to)
		}
	case map[string]any:
		for _, e := range d {
			to = leaves(e, to)
		}
	}
	return to
}
