package csispec

import (
	"encoding/json"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
)

// Secrets are the values of one message that must not appear in other text: those that
// [Redacted] masks, except user names. The zero value has none. Its methods must not be
// called concurrently with Take.
type Secrets struct {
	keys       []string
	values     []string
	mountFlags []string // all of them; parsed when a text is redacted

	// Most requests have few of each, and are answered without an error: for them Take
	// does not allocate.
	fewValues, fewFlags [4]string
}

// Take replaces s by the secrets of m. Later changes of m do not concern s, so that a
// server can take the secrets before a handler gets the request, and redact the handler's
// error even if the handler has removed them from the request or still writes to it.
func (s *Secrets) Take(m proto.Message, keys ...string) {
	s.keys, s.values, s.mountFlags = keys, s.fewValues[:0], s.fewFlags[:0]
	if m != nil && m.ProtoReflect().IsValid() {
		visit(s, m)
	}
}

// RedactText masks in text every value of at least four bytes, also as it is quoted or
// escaped: by Go, JSON, the text format of protocol buffers or C, with ASCII only or not, by
// percent encoding of any kind, and by up to three of these one after the other. Of a value
// with several lines each line is masked, of one like a configuration file what follows a
// '=' or ':', of a JSON document every string. Other encodings, such as base64, are not
// recognized.
//
// It is meant for the text of an error that may echo its request, in a log or in a
// status. Text is truncated after 64 KiB. If the values have more than 256 KiB to search
// for, the text is replaced as a whole. So time and memory are bounded, whatever the
// message and the text are.
func (s *Secrets) RedactText(text string) string {
	text, omitted := truncateText(text)
	if text == "" || len(s.values)+len(s.mountFlags) == 0 {
		return text + omitted
	}
	p := newPatterns(len(text), omitted != "")
	if !s.addTo(p) {
		return mask + " (the secrets of the request are too large to be found in this text)"
	}
	return p.redact(text) + omitted
}

// addTo adds everything that is masked in a text; false if that is too much.
func (s *Secrets) addTo(p *patterns) bool {
	for _, v := range s.values {
		if !p.addParts(v) {
			return false
		}
	}
	for i, v := range s.mountFlags {
		if len(v) > longestFlag || follows(s.mountFlags, i) && !p.add(v) || !flagSecrets(v, p.add) {
			return false
		}
	}
	return true
}

// addParts adds a secret value and what a program may read from it: lines, values of a
// configuration file, strings of JSON.
func (p *patterns) addParts(v string) bool {
	if !p.add(v) || !p.addLines(v) {
		return false
	}
	if !strings.HasPrefix(v, "{") && !strings.HasPrefix(v, "[") {
		return true
	}
	var doc any
	if len(v) > maxPatterns {
		return false
	}
	return json.Unmarshal([]byte(v), &doc) != nil || p.addLeaves(doc)
}

func (p *patterns) addLines(v string) bool {
	for line := range strings.Lines(v) {
		line = strings.TrimSpace(line)
		if !p.add(line) {
			return false
		}
		for _, separator := range []string{"=", ":"} {
			if _, value, found := strings.Cut(line, separator); found && !p.add(strings.Trim(value, " \t\"',;")) {
				return false
			}
		}
	}
	return true
}

// addLeaves adds the strings within a JSON document.
func (p *patterns) addLeaves(doc any) bool {
	switch d := doc.(type) {
	case string:
		return p.add(d) && p.addLines(d)
	case []any:
		for _, e := range d {
			if !p.addLeaves(e) {
				return false
			}
		}
	case map[string]any:
		for _, e := range d {
			if !p.addLeaves(e) {
				return false
			}
		}
	}
	return true
}

func (s *Secrets) masks(key string) bool { return masked(key, s.keys) }

func (s *Secrets) entries(_ string, m map[string]string) {
	if v, ok := m[tokensKey]; ok {
		s.values = append(s.values, v)
	}
	for _, k := range s.keys {
		if v, ok := m[k]; ok {
			s.values = append(s.values, v)
		}
	}
}

func (s *Secrets) secrets(_ string, m map[string]string) {
	s.values = slices.Grow(s.values, len(m))
	for _, v := range m {
		s.values = append(s.values, v)
	}
}

func (s *Secrets) flags(_ string, vs []string) { s.mountFlags = append(s.mountFlags, vs...) }

func (s *Secrets) list(_ string, n int, each func(sink, int)) {
	for i := range n {
		each(s, i)
	}
}

func (s *Secrets) secret(_, v string)       { s.values = append(s.values, v) }
func (*Secrets) text(_, _ string)           {}
func (*Secrets) integer(string, int64)      {}
func (*Secrets) boolean(string, bool)       {}
func (*Secrets) enum(string, int32, string) {}
func (*Secrets) texts(string, []string)     {}
func (*Secrets) open(string)                {}
func (*Secrets) close()                     {}
