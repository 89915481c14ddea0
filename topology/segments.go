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

// Segments are the segments of a csi.Topology: a value for each topological domain, such
// as "topology.example.com/zone": "z1". None means everywhere.
type Segments map[string]string

// FromTopology returns the segments of a message; none for nil.
func FromTopology(t *csi.Topology) Segments { return t.GetSegments() }

// Parse parses "key=value,key=value", from a flag or an environment variable. An
// empty text is no segments. White space around commas is ignored. The result is
// valid, or the error is INVALID_ARGUMENT.
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
			return nil, invalid("parse topology", "duplicate key %s", quote(key))
		}
		s[key] = value
	}
	if err := Validate(s); err != nil {
		return nil, err
	}
	return s, nil
}

// FromLabels selects segments from the labels of a node. Each entry of allow is
// the key of a label, or "key=label" to use the value of a label under the plugin's own
// key. All labels have to exist, else the error is INVALID_ARGUMENT: the CO silently
// ignores a node that lacks a key which other nodes have.
func FromLabels(labels map[string]string, allow ...string) (Segments, error) {
	s := Segments{}
	var missing []string
	for _, entry := range allow {
		key, label, renamed := strings.Cut(entry, "=")
		if !renamed {
			label = key
		}
		if _, dup := s[key]; dup {
			return nil, invalid("topology from labels", "duplicate key %s", quote(key))
		}
		value, found := labels[label]
		if !found {
			missing = append(missing, quote(label))
		}
		s[key] = value
	}
	if len(missing) > 0 {
		return nil, invalid("topology from labels", "the node has no label %s: set it on the node, or remove it from the plugin's configuration", strings.Join(missing, ", "))
	}
	if err := Validate(s); err != nil {
		return nil, err
	}
	return s, nil
}

// String returns the canonical text, which is the same for equal segments: sorted,
// keys in lower case, "key=value,key=value". [Parse] accepts it.
func (s Segments) String() string {
	return canonical(s).String()
}

// Set adds the segments that [Parse] returns, so that *Segments is a flag.Value, and the
// flag may be repeated. After an error s is unchanged.
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
			return invalid("parse topology", "duplicate key %s", quote(key))
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

// Matches reports whether s has every segment of other, as the labels of a node match a
// node selector: zone=z1,rack=r3 matches zone=z1, but not the reverse. Every set matches
// the empty set. A node can access a volume if node.Matches(accessibleTopology) for one of
// the volume's accessible topologies.
func (s Segments) Matches(other Segments) bool {
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
	// The grammar of a value, and of the part of a key after the slash.
	name   = regexp.MustCompile(`^[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?$`)
	prefix = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
)

const (
	maxPrefix = 63
	maxTotal  = 4 << 10 // bytes of keys and values; the general limit for maps
)

// Validate checks the segments that one plugin uses, of its nodes and of its
// places: the grammar and the limits of each, that no keys differ in case only, and
// that all keys with a prefix have the same one. The error, INVALID_ARGUMENT, lists
// everything that is wrong.
func Validate(all ...Segments) error {
	var wrong []string
	var first *string // a prefix
	for _, s := range all {
		wrong = append(wrong, segmentErrors(s)...)
		for _, key := range slices.Sorted(maps.Keys(s)) {
			p, _, found := strings.Cut(key, "/")
			if found && first == nil {
				first = &p
			} else if found && p != *first {
				wrong = append(wrong, fmt.Sprintf("the prefix of %s is not %s: a plugin must use a single prefix", quote(key), quote(*first)))
			}
		}
	}
	return joined(wrong)
}

// segmentErrors returns what is wrong with one set of segments.
func segmentErrors(s Segments) (wrong []string) {
	total := 0
	folded := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(s)) {
		total += len(key) + len(s[key])
		wrong = append(wrong, grammarErrors(key, s[key])...)
		if other, dup := folded[strings.ToLower(key)]; dup {
			wrong = append(wrong, fmt.Sprintf("%s differs from %s in case only", quote(key), quote(other)))
		}
		folded[strings.ToLower(key)] = key
	}
	if total > maxTotal {
		wrong = append(wrong, fmt.Sprintf("keys and values have %d bytes, the limit is %d", total, maxTotal))
	}
	return wrong
}

func joined(wrong []string) error {
	if len(wrong) == 0 {
		return nil
	}
	return invalid("check topology", "%s", strings.Join(wrong, "; "))
}

func grammarErrors(key, value string) (wrong []string) {
	p, n, found := strings.Cut(key, "/")
	if !found {
		p, n = "", key
	}
	if !name.MatchString(n) || found && (len(p) > maxPrefix || !prefix.MatchString(p)) {
		wrong = append(wrong, fmt.Sprintf("%s is not a topology key: need [lower-case domain/]name, each up to 63 letters, digits, '-', '_' and '.'", quote(key)))
	}
	if !name.MatchString(value) {
		wrong = append(wrong, fmt.Sprintf("%s has the value %s: need 1 to 63 letters, digits, '-', '_' and '.', a letter or digit at both ends", quote(key), quote(value)))
	}
	return wrong
}

// form is the canonical form of segments, for comparisons: sorted, keys in lower case.
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

// compatible is the comparison of "Compatible topologies" in the package documentation.
func (f form) compatible(other form) bool { return f.has(other) || other.has(f) }
