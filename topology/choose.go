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

// Candidate is a place for volumes: a storage pool, which may be that of a node or a zone.
type Candidate struct {
	Name      string
	Segments  Segments // the topology from which its volumes are accessible; none: everywhere
	Free      int64    // bytes; math.MaxInt64 if unknown
	MaxVolume int64    // bytes of the largest volume, however much is free; 0: no limit
}

func (c Candidate) fits(size int64) bool {
	return size <= c.Free && (c.MaxVolume == 0 || size <= c.MaxVolume)
}

// Option configures [Choose].
type Option interface{ apply(*config) }

type config struct {
	copies int
	pack   bool
}

type option func(*config)

func (o option) apply(c *config) { o(c) }

// WithCopies requests a volume that is accessible from that number of topologies, with the
// whole of its size in a place in each. The default is 1.
func WithCopies(copies int) Option { return option(func(c *config) { c.copies = copies }) }

// WithSpread selects, of places that the CO prefers equally, the one with the most free
// bytes. It is the default.
func WithSpread() Option { return option(func(c *config) { c.pack = false }) }

// WithPack selects, of places that the CO prefers equally, the one with the fewest free
// bytes that are sufficient, which keeps large places for large volumes.
func WithPack() Option { return option(func(c *config) { c.pack = true }) }

// Choose returns the place for a new volume of size bytes (0: any size), or with
// [WithCopies] several places, all with different topologies (their number is the x of
// TopologyRequirement in the specification):
//
//   - with requisite topologies, the places satisfy [Satisfies];
//   - then places in preferred topologies come before others, in the order of the
//     preferred ones;
//   - of several copies, those in separate topologies come before two of which one topology
//     contains the other, such as a zone and a rack in it;
//   - of equally preferred places, [WithSpread] or [WithPack] selects one, and of equal
//     ones the order of from.
//
// The result is in that order. A nil requirement allows every place, as does one
// with preferred topologies only.
//
// The [*Error] is RESOURCE_EXHAUSTED when no choice is possible now, with the reason
// for each place; external-provisioner then tries another node. It is
// INVALID_ARGUMENT when the requirement violates the specification, when size is
// negative, or when fewer than one copy is requested.
func Choose(req *csi.TopologyRequirement, size int64, from []Candidate, opts ...Option) ([]Candidate, error) {
	const op = "choose a storage pool"
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
	rank int // the index of its first preferred topology; above those: requisite, then other
}

// best returns the places that have capacity, in the order of the strategy. Of those
// with the same topology it keeps the first: a second one would not make a volume
// accessible from another topology.
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

// sort sorts the places by the CO's preference, and is stable for equal preference.
func (r *requirement) sort(places []place) {
	preferred, requisite := newIndex(r.preferred), newIndex(r.requisite)
	for i := range places {
		p := &places[i]
		switch first := preferred.first(p.form); {
		case first >= 0:
			p.rank = first
		case requisite.first(p.form) >= 0:
			p.rank = len(r.preferred)
		default:
			p.rank = len(r.preferred) + 1
		}
	}
	slices.SortStableFunc(places, func(a, b place) int { return cmp.Compare(a.rank, b.rank) })
}

// pick chooses the first of the places that together satisfy the requirement, or
// returns what is missing.
func (r *requirement) pick(places []place, copies int) (chosen []Candidate, short string) {
	take := make([]bool, len(places))
	taken := 0
	if copies < len(r.requisite) {
		// Adding greedily yields the first choice in order, because a place that has been
		// assigned a requisite topology keeps one.
		a := newAssignment(r.requisite)
		for i := range places {
			if taken < copies && a.add(places[i].form) {
				take[i] = true
				taken++
			}
		}
	} else {
		for _, q := range r.requisite {
			i := slices.IndexFunc(places, func(p place) bool { return p.compatible(q) })
			if i < 0 {
				return nil, fmt.Sprintf("no storage pool in the requisite topology %s has enough capacity", q.words())
			}
			covered := false
			for j := range places {
				covered = covered || take[j] && places[j].compatible(q)
			}
			if !covered {
				take[i] = true
				taken++
			}
		}
		// A place within the topology of another one adds a copy, but no topology of its own:
		// those come last.
		for _, overlapping := range []bool{false, true} {
			for i := range places {
				if taken < copies && !take[i] && (overlapping || !overlaps(places, take, i)) {
					take[i] = true
					taken++
				}
			}
		}
	}
	if taken < copies {
		if copies == 1 {
			return nil, "no storage pool has enough capacity in an allowed topology"
		}
		return nil, fmt.Sprintf("only %d of the %d required topologies have a storage pool with enough capacity", taken, copies)
	}
	for i, p := range places {
		if take[i] {
			chosen = append(chosen, p.Candidate)
		}
	}
	return chosen, ""
}

// overlaps reports whether a place is compatible with one that is taken.
func overlaps(places []place, take []bool, i int) bool {
	for j := range places {
		if take[j] && places[j].compatible(places[i].form) {
			return true
		}
	}
	return false
}

// why returns for each candidate the reason why it is not suitable.
func (r *requirement) why(from []Candidate, size int64, copies int) string {
	var lines []string
	requisite := newIndex(r.requisite)
	for _, c := range from {
		outside := len(r.requisite) > 0 && copies <= len(r.requisite) && requisite.first(canonical(c.Segments)) < 0
		what := c.Name + " (" + canonical(c.Segments).words() + ") "
		switch {
		case outside:
			what += "is in no requisite topology"
		case c.MaxVolume != 0 && size > c.MaxVolume:
			what += "allows volumes of at most " + amount(c.MaxVolume)
		case size > c.Free:
			what += "has " + amount(max(c.Free, 0)) + " free"
		default:
			what += "fits"
		}
		lines = append(lines, what)
	}
	if len(lines) == 0 {
		return "no storage pools are configured"
	}
	return "requested " + amount(size) + "; " + several(lines)
}

// words is String for messages.
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
