package topology

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Segments says where something is: for each topological domain its segment, such
// as "topology.example.com/zone": "z1". None means everywhere.
type Segments map[string]string

// Of returns the segments of a message; none for nil.
func Of(t *csi.Topology) Segments { return t.GetSegments() }

// Parse reads "key=value,key=value", from a flag or an environment variable. An
// empty text is no segments. White space around commas is left out. What Parse
// returns without an error is valid.
func Parse(text string) (Segments, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	s := Segments{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, found := strings.Cut(strings.TrimSpace(part), "=")
		if !found {
			return nil, invalid("parse topology", "%s is not key=value", quote(part))
		}
		if _, dup := s[key]; dup {
			return nil, invalid("parse topology", "%s is there twice", quote(key))
		}
		s[key] = value
	}
	if err := Validate(s); err != nil {
		return nil, err
	}
	return s, nil
}

// FromLabels picks segments out of the labels of a node. Each entry of allow is
// the key of a label, or "key=label" to take the value of a label under a key of
// the plugin's own. All of them have to be there: a node that lacks a key which
// others have is left out by the CO without a word.
func FromLabels(labels map[string]string, allow ...string) (Segments, error) {
	s := Segments{}
	var missing []string
	for _, entry := range allow {
		key, label, renamed := strings.Cut(entry, "=")
		if !renamed {
			label = key
		}
		if _, dup := s[key]; dup {
			return nil, invalid("topology from labels", "%s is allowed twice", quote(key))
		}
		value, found := labels[label]
		if !found {
			missing = append(missing, quote(label))
		}
		s[key] = value
	}
	if len(missing) > 0 {
		return nil, invalid("topology from labels", "the node has no label %s: set it, or do not ask for it", strings.Join(missing, ", "))
	}
	if err := Validate(s); err != nil {
		return nil, err
	}
	return s, nil
}

// String returns the canonical text, which is the same for equal segments: sorted,
// keys in lower case, "key=value,key=value". [Parse] reads it.
func (s Segments) String() string {
	return canonical(s).String()
}

// Set adds what [Parse] reads, so that *Segments is a flag.Value, and the flag may
// be repeated.
func (s *Segments) Set(text string) error {
	more, err := Parse(text)
	if err != nil {
		return err
	}
	all := maps.Clone(*s)
	if all == nil {
		all = Segments{}
	}
	for key, value := range more {
		if _, dup := all[key]; dup {
			return invalid("parse topology", "%s is there twice", quote(key))
		}
		all[key] = value
	}
	if err := Validate(all); err != nil {
		return err
	}
	*s = all
	return nil
}

// Equal reports whether both have the same segments.
func (s Segments) Equal(other Segments) bool {
	return slices.Equal(canonical(s), canonical(other))
}

// Within reports whether s is a part of other, or all of it: whatever has the
// segments s has those of other. So zone=z1,rack=r3 is within zone=z1, and
// everything is within no segments.
func (s Segments) Within(other Segments) bool {
	return canonical(s).has(canonical(other))
}

// Topology returns the message; nil for no segments.
func (s Segments) Topology() *csi.Topology {
	if len(s) == 0 {
		return nil
	}
	return &csi.Topology{Segments: maps.Clone(s)}
}

var (
	// One name of the grammar: the part of a key behind the slash, and a value.
	name   = regexp.MustCompile(`^[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?$`)
	prefix = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
)

const (
	maxPrefix = 63
	maxTotal  = 4 << 10 // bytes of keys and values; the general limit for maps
)

// Validate checks the segments that one plugin uses, of its nodes and of its
// places: the grammar and the limits of each, keys that differ in case only, and
// that all keys with a prefix have the same one. The error lists all that is wrong.
func Validate(all ...Segments) error {
	var wrong []string
	var first *string // a prefix
	for _, s := range all {
		wrong = append(wrong, wrongAlone(s)...)
		for _, key := range slices.Sorted(maps.Keys(s)) {
			p, _, found := strings.Cut(key, "/")
			if found && first == nil {
				first = &p
			} else if found && p != *first {
				wrong = append(wrong, fmt.Sprintf("the prefix of %s is not %s: one plugin must use one prefix", quote(key), quote(*first)))
			}
		}
	}
	return wrongErr(wrong)
}

// wrongAlone lists what is wrong with one set of segments.
func wrongAlone(s Segments) (wrong []string) {
	total := 0
	folded := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(s)) {
		total += len(key) + len(s[key])
		wrong = append(wrong, wrongGrammar(key, s[key])...)
		if other, dup := folded[strings.ToLower(key)]; dup {
			wrong = append(wrong, fmt.Sprintf("%s differs from %s in case only", quote(key), quote(other)))
		}
		folded[strings.ToLower(key)] = key
	}
	if total > maxTotal {
		wrong = append(wrong, fmt.Sprintf("%d bytes of segments are more than %d", total, maxTotal))
	}
	return wrong
}

func wrongErr(wrong []string) error {
	if len(wrong) == 0 {
		return nil
	}
	return invalid("check topology", "%s", strings.Join(wrong, "; "))
}

func wrongGrammar(key, value string) (wrong []string) {
	p, n, found := strings.Cut(key, "/")
	if !found {
		p, n = "", key
	}
	if !name.MatchString(n) || found && (len(p) > maxPrefix || !prefix.MatchString(p)) {
		wrong = append(wrong, fmt.Sprintf("%s is not a key: need [lower-case domain/]name, each up to 63 letters, digits, '-', '_' and '.'", quote(key)))
	}
	if !name.MatchString(value) {
		wrong = append(wrong, fmt.Sprintf("%s has the value %s: need 1 to 63 letters, digits, '-', '_' and '.', a letter or digit at both ends", quote(key), quote(value)))
	}
	return wrong
}

// form is the canonical form of segments, to compare them: sorted, keys folded.
type form []pair

type pair struct{ key, value string }

func canonical(s Segments) form {
	f := make(form, 0, len(s))
	for key, value := range s {
		f = append(f, pair{strings.ToLower(key), value})
	}
	slices.SortFunc(f, func(a, b pair) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.value, b.value))
	})
	return f
}

func (f form) String() string {
	var b strings.Builder
	for i, p := range f {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(p.key + "=" + p.value)
	}
	return b.String()
}

// has reports whether f has all pairs of other.
func (f form) has(other form) bool {
	if len(other) > len(f) {
		return false
	}
	for _, p := range f {
		if len(other) > 0 && p == other[0] {
			other = other[1:]
		}
	}
	return len(other) == 0
}

// matches is what the package's documentation says on which topologies match.
func (f form) matches(other form) bool { return f.has(other) || other.has(f) }
