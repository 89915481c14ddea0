package topology

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// Candidate is a place for volumes: a pool, a node, a zone.
type Candidate struct {
	Name      string
	Segments  Segments // from where a volume in it is accessible; none: everywhere
	Free      int64    // bytes; math.MaxInt64 if unknown
	MaxVolume int64    // bytes of the largest volume it takes, however much is free; 0: no limit
}

func (c Candidate) fits(size int64) bool {
	return size <= c.Free && (c.MaxVolume == 0 || size <= c.MaxVolume)
}

// Option changes what [Choose] does.
type Option interface{ apply(*config) }

type config struct {
	copies int
	pack   bool
}

type option func(*config)

func (o option) apply(c *config) { o(c) }

// Copies asks for a volume that is accessible from n topologies, with the whole
// of its size in a place in each. Without it n is 1.
func Copies(n int) Option { return option(func(c *config) { c.copies = n }) }

// Spread takes, of places that the CO likes as well, the one with the most free
// bytes. It is the default.
func Spread() Option { return option(func(c *config) { c.pack = false }) }

// Pack takes the one with the fewest that are enough, and so keeps large places
// for large volumes.
func Pack() Option { return option(func(c *config) { c.pack = true }) }

// Choose returns the place for a new volume of size bytes, 0 for any size, or with
// [Copies] the n places, all with different topologies. Of n places x = n in the
// words of the specification:
//
//   - with requisite topologies, these places are such that [Satisfies] holds;
//   - then places in preferred topologies come before others, in the order of the
//     preferred ones;
//   - then [Spread] or [Pack] decides, and last the order of from.
//
// The result is in that order. A nil requirement allows every place, as does one
// with preferred topologies alone.
//
// The [*Error] is RESOURCE_EXHAUSTED when no choice is possible now, and says why
// of each place; external-provisioner then asks for another node. It is
// INVALID_ARGUMENT when the requirement breaks the specification, when size is
// negative, or when fewer than one copy is asked for.
func Choose(req *csi.TopologyRequirement, size int64, from []Candidate, opts ...Option) ([]Candidate, error) {
	const op = "choose a place"
	c := config{copies: 1}
	for _, o := range opts {
		o.apply(&c)
	}
	if size < 0 {
		return nil, invalid(op, "a volume of %d bytes", size)
	}
	if c.copies < 1 {
		return nil, invalid(op, "%d copies", c.copies)
	}
	r, err := read(op, req)
	if err != nil {
		return nil, err
	}
	if r == nil {
		r = &requirement{}
	}
	places := c.best(from, size)
	r.sort(places)
	chosen, short := r.pick(places, c.copies)
	if short != "" {
		return nil, fail(codes.ResourceExhausted, op, "%s: %s", short, r.why(from, size, c.copies))
	}
	return chosen, nil
}

// place is the best candidate of its topology.
type place struct {
	Candidate
	form
	rank int // the first preferred topology it is in; more: none of them, or not even a requisite one
}

// best returns the places that have room, in the order of the strategy. Of those
// with the same topology it leaves the first: more make a volume accessible from
// no more.
func (c *config) best(from []Candidate, size int64) []place {
	from = slices.DeleteFunc(slices.Clone(from), func(c Candidate) bool { return !c.fits(size) })
	slices.SortStableFunc(from, func(a, b Candidate) int {
		if c.pack {
			return cmp.Compare(a.Free, b.Free)
		}
		return cmp.Compare(b.Free, a.Free)
	})
	places := make([]place, 0, len(from))
	seen := make(map[string]bool, len(from))
	for _, candidate := range from {
		f := canonical(candidate.Segments)
		if text := f.String(); !seen[text] {
			seen[text] = true
			places = append(places, place{Candidate: candidate, form: f})
		}
	}
	return places
}

// sort puts the places into the order of the CO's preference, and leaves those
// that it likes as well in the order they have.
func (r *requirement) sort(places []place) {
	for i := range places {
		p := &places[i]
		switch liked := slices.IndexFunc(r.preferred, p.matches); {
		case liked >= 0:
			p.rank = liked
		case slices.ContainsFunc(r.requisite, p.matches):
			p.rank = len(r.preferred)
		default:
			p.rank = len(r.preferred) + 1
		}
	}
	slices.SortStableFunc(places, func(a, b place) int { return cmp.Compare(a.rank, b.rank) })
}

// pick chooses the first of the places that together satisfy the requirement, or
// says what it is short of.
func (r *requirement) pick(places []place, copies int) (chosen []Candidate, short string) {
	take := make([]bool, len(places))
	taken := 0
	if copies < len(r.requisite) {
		// To add whatever can be added yields the first choice in order, since
		// who has got a requisite topology of its own keeps one.
		a := newAssignment(r.requisite)
		for i := range places {
			if taken < copies && a.add(places[i].form) {
				take[i] = true
				taken++
			}
		}
	} else {
		for _, q := range r.requisite {
			i := slices.IndexFunc(places, func(p place) bool { return p.matches(q) })
			if i < 0 {
				return nil, fmt.Sprintf("nothing is free in the requisite topology %s", q.words())
			}
			covered := false
			for j := range places {
				covered = covered || take[j] && places[j].matches(q)
			}
			if !covered {
				take[i] = true
				taken++
			}
		}
		for i := range places {
			if taken < copies && !take[i] {
				take[i] = true
				taken++
			}
		}
	}
	if taken < copies {
		if copies == 1 {
			return nil, "there is no place"
		}
		return nil, fmt.Sprintf("there are places in %d different topologies, not in %d", taken, copies)
	}
	for i, p := range places {
		if take[i] {
			chosen = append(chosen, p.Candidate)
		}
	}
	return chosen, ""
}

// why says of each candidate why it will not do.
func (r *requirement) why(from []Candidate, size int64, copies int) string {
	var lines []string
	for _, c := range from {
		outside := len(r.requisite) > 0 && copies <= len(r.requisite) &&
			!slices.ContainsFunc(r.requisite, canonical(c.Segments).matches)
		what := c.Name + " (" + canonical(c.Segments).words() + ") "
		switch {
		case outside:
			what += "is in no requisite topology"
		case c.MaxVolume != 0 && size > c.MaxVolume:
			what += "takes volumes of at most " + amount(c.MaxVolume)
		case size > c.Free:
			what += "has " + amount(max(c.Free, 0)) + " free"
		default:
			what += "would do"
		}
		lines = append(lines, what)
	}
	if len(lines) == 0 {
		return "no places are known"
	}
	return "wanted " + amount(size) + "; " + several(lines)
}

// words is String for a person.
func (f form) words() string {
	if len(f) == 0 {
		return "everywhere"
	}
	return f.String()
}

func amount(bytes int64) string {
	for _, unit := range []struct {
		size int64
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}} {
		if bytes >= unit.size {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", math.Floor(10*float64(bytes)/float64(unit.size))/10), ".0") + " " + unit.name
		}
	}
	return fmt.Sprintf("%d bytes", bytes)
}
