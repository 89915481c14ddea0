package csispec

import "log/slog"

// group is a sink that builds the slog value of a message. Handlers print strings, numbers
// and groups fast; only lists of messages are rendered as JSON here.
type group struct {
	keys  []string      // to mask
	attrs [][]slog.Attr // of the messages that are open
	room  [maxDepth + 1][]slog.Attr
}

func newGroup(keys []string) *group {
	g := &group{keys: keys}
	g.attrs = append(g.room[:0], make([]slog.Attr, 0, 8))
	return g
}

// end closes the innermost message.
func (g *group) end() slog.Value {
	last := len(g.attrs) - 1
	attrs := g.attrs[last]
	g.attrs = g.attrs[:last]
	if len(attrs) == 0 {
		// Handlers drop an empty group, but a block volume is one.
		return slog.AnyValue(rawJSON("{}"))
	}
	return slog.GroupValue(attrs...)
}

func (g *group) add(a slog.Attr) {
	last := len(g.attrs) - 1
	g.attrs[last] = append(g.attrs[last], a)
}

func (g *group) text(name, v string)          { g.add(slog.String(name, v)) }
func (g *group) integer(name string, v int64) { g.add(slog.Int64(name, v)) }
func (g *group) boolean(name string, v bool)  { g.add(slog.Bool(name, v)) }

func (g *group) enum(name string, number int32, label string) {
	if label == "" {
		g.integer(name, int64(number))
		return
	}
	g.text(name, label)
}

func (g *group) texts(name string, vs []string) { g.add(slog.Any(name, textList(vs))) }

func (g *group) flags(name string, vs []string) {
	l := make(textList, len(vs))
	for i := range vs {
		l[i] = redactFlag(vs, i)
	}
	g.add(slog.Any(name, l))
}

func (g *group) entries(name string, m map[string]string) {
	var room [16]string
	attrs := make([]slog.Attr, 0, len(m))
	for _, k := range sortedKeys(room[:0], m) {
		v := m[k]
		if masked(k, g.keys) {
			v = mask
		}
		attrs = append(attrs, slog.String(k, v))
	}
	g.add(slog.Attr{Key: name, Value: slog.GroupValue(attrs...)})
}

func (g *group) secrets(name string, _ map[string]string) { g.text(name, mask) }
func (g *group) secret(name, _ string)                    { g.text(name, mask) }

func (g *group) masks(key string) bool { return masked(key, g.keys) }

func (g *group) open(name string) {
	g.add(slog.Attr{Key: name}) // close sets its value
	g.attrs = append(g.attrs, make([]slog.Attr, 0, 4))
}

func (g *group) close() {
	v := g.end()
	outer := g.attrs[len(g.attrs)-1]
	outer[len(outer)-1].Value = v
}

func (g *group) list(name string, n int, each func(s sink, i int)) {
	j := newJSON(g.keys)
	j.array(n, each)
	g.add(slog.Any(name, rawJSON(j.done())))
}

// rawJSON is printed as it is by slog's JSON and text handlers alike.
type rawJSON string

func (j rawJSON) MarshalJSON() ([]byte, error) { return []byte(j), nil }

// textList is printed as a JSON array by both handlers too, without a second check by the
// JSON handler.
type textList []string

func (l textList) String() string { return string(appendStrings(nil, l)) }
