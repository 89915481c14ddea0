package topology

import (
	"slices"
	"strings"
)

// index finds the first of many topologies that is compatible with another one without
// comparing it with each: clusters have thousands of nodes, but few sets of keys.
type index struct {
	terms  []form
	within map[string]map[string]int // by the keys of a term: its text, and the first term with it
	keys   map[string][]string       // of within
	around map[string]map[string]int // by the keys of an argument of first: the terms that have these and others
}

func newIndex(terms []form) *index {
	x := &index{terms: terms, within: map[string]map[string]int{}, keys: map[string][]string{}, around: map[string]map[string]int{}}
	for i, q := range terms {
		keys := q.keys()
		id := strings.Join(keys, "\x00")
		if x.within[id] == nil {
			x.within[id], x.keys[id] = map[string]int{}, keys
		}
		remember(x.within[id], q, keys, i)
	}
	return x
}

// remember notes that term i has these keys with its values, if it is the first that does.
func remember(first map[string]int, term form, keys []string, i int) {
	if text, ok := term.project(keys); ok {
		if _, earlier := first[text]; !earlier {
			first[text] = i
		}
	}
}

// first is slices.IndexFunc(terms, f.compatible).
func (x *index) first(f form) int {
	keys := f.keys()
	if len(slices.Compact(slices.Clone(keys))) < len(keys) { // not valid, and seldom
		return slices.IndexFunc(x.terms, f.compatible)
	}
	found := -1
	earlier := func(first map[string]int, keys []string) {
		if text, ok := f.project(keys); ok {
			if i, ok := first[text]; ok && (found < 0 || i < found) {
				found = i
			}
		}
	}
	for id, terms := range x.within {
		earlier(terms, x.keys[id])
	}
	id := strings.Join(keys, "\x00")
	if x.around[id] == nil {
		x.around[id] = map[string]int{}
		for i, q := range x.terms {
			remember(x.around[id], q, keys, i)
		}
	}
	earlier(x.around[id], keys)
	return found
}

// keys returns the keys of the segments, sorted.
func (f form) keys() []string {
	keys := make([]string, len(f))
	for i, p := range f {
		keys[i] = p.key
	}
	return keys
}

// project returns the values of the keys, which are sorted, as a text; false if f lacks one.
func (f form) project(keys []string) (string, bool) {
	var text strings.Builder
	i := 0
	for _, key := range keys {
		for i < len(f) && f[i].key < key {
			i++
		}
		if i == len(f) || f[i].key != key {
			return "", false
		}
		text.WriteString(f[i].value)
		text.WriteByte(0)
	}
	return text.String(), true
}
