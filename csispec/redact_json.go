package csispec

import (
	"encoding/json"
	"strconv"
	"sync"
)

// jsonSink is a sink that prints one JSON document. Names are those of proto fields, which
// need no escaping.
type jsonSink struct {
	buf  []byte
	keys []string // to mask
}

var jsonSinks = sync.Pool{New: func() any { return &jsonSink{buf: make([]byte, 0, 1024)} }}

func newJSON(keys []string) *jsonSink {
	j := jsonSinks.Get().(*jsonSink)
	j.keys = keys
	return j
}

// done returns the document and returns the sink to the pool.
func (j *jsonSink) done() string {
	s := string(j.buf)
	if cap(j.buf) <= 64<<10 { // do not keep the buffer of a huge message
		j.buf, j.keys = j.buf[:0], nil
		jsonSinks.Put(j)
	}
	return s
}

func (j *jsonSink) begin() { j.buf = append(j.buf, '{') }
func (j *jsonSink) end()   { j.buf = append(j.buf, '}') }

// name begins a field, after a comma unless it is the first.
func (j *jsonSink) name(name string) {
	j.comma()
	j.buf = append(j.buf, '"')
	j.buf = append(j.buf, name...)
	j.buf = append(j.buf, '"', ':')
}

func (j *jsonSink) comma() {
	if c := j.buf[len(j.buf)-1]; c != '{' && c != '[' {
		j.buf = append(j.buf, ',')
	}
}

func (j *jsonSink) text(name, v string) {
	j.name(name)
	j.buf = appendQuoted(j.buf, v)
}

func (j *jsonSink) integer(name string, v int64) {
	j.name(name)
	j.buf = strconv.AppendInt(j.buf, v, 10)
}

func (j *jsonSink) boolean(name string, v bool) {
	j.name(name)
	j.buf = strconv.AppendBool(j.buf, v)
}

func (j *jsonSink) enum(name string, number int32, label string) {
	if label == "" {
		j.integer(name, int64(number))
		return
	}
	j.text(name, label)
}

func (j *jsonSink) texts(name string, vs []string) {
	j.name(name)
	j.buf = appendStrings(j.buf, vs)
}

func (j *jsonSink) flags(name string, vs []string) {
	j.name(name)
	j.buf = append(j.buf, '[')
	for i := range vs {
		j.comma()
		j.buf = appendQuoted(j.buf, redactFlag(vs, i))
	}
	j.buf = append(j.buf, ']')
}

func (j *jsonSink) entries(name string, m map[string]string) {
	j.name(name)
	j.begin()
	var room [16]string
	for _, k := range sortedKeys(room[:0], m) {
		j.comma()
		j.buf = appendQuoted(j.buf, k)
		j.buf = append(j.buf, ':')
		if masked(k, j.keys) {
			j.buf = append(j.buf, `"`+mask+`"`...)
		} else {
			j.buf = appendQuoted(j.buf, m[k])
		}
	}
	j.end()
}

func (j *jsonSink) secrets(name string, _ map[string]string) { j.text(name, mask) }
func (j *jsonSink) secret(name, _ string)                    { j.text(name, mask) }

func (j *jsonSink) masks(key string) bool { return masked(key, j.keys) }

func (j *jsonSink) open(name string) {
	j.name(name)
	j.begin()
}

func (j *jsonSink) close() { j.end() }

func (j *jsonSink) list(name string, n int, each func(s sink, i int)) {
	j.name(name)
	j.array(n, each)
}

func (j *jsonSink) array(n int, each func(s sink, i int)) {
	j.buf = append(j.buf, '[')
	for i := range n {
		j.comma()
		j.begin()
		each(j, i)
		j.end()
	}
	j.buf = append(j.buf, ']')
}

func appendStrings(b []byte, vs []string) []byte {
	b = append(b, '[')
	for i, v := range vs {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendQuoted(b, v)
	}
	return append(b, ']')
}

// appendQuoted appends s as a JSON string, with a fast path for plain ASCII.
func appendQuoted(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			q, err := json.Marshal(s)
			if err != nil { // a string always marshals
				q = []byte(`""`)
			}
			return append(b, q...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
