package topology

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// requirement is a csi.TopologyRequirement to compare with.
type requirement struct {
	requisite []form // without repeats
	preferred []form
}

// read returns nil for nil: everywhere is good.
func read(op string, req *csi.TopologyRequirement) (*requirement, error) {
	if req == nil {
		return nil, nil
	}
	r := &requirement{}
	for _, list := range []struct {
		name string
		in   []*csi.Topology
		out  *[]form
	}{{"requisite", req.GetRequisite(), &r.requisite}, {"preferred", req.GetPreferred(), &r.preferred}} {
		for i, t := range list.in {
			if err := wrongErr(wrongAlone(Of(t))); err != nil {
				return nil, invalid(op, "%s[%d]: %w", list.name, i, err)
			}
			*list.out = append(*list.out, canonical(Of(t)))
		}
		*list.out = distinct(*list.out)
	}
	if len(r.requisite) == 0 && len(r.preferred) == 0 {
		return nil, invalid(op, "the requirement has neither requisite nor preferred topologies")
	}
	allowed := map[string]bool{}
	for _, q := range r.requisite {
		allowed[q.String()] = true
	}
	for _, p := range r.preferred {
		if len(r.requisite) > 0 && !allowed[p.String()] {
			return nil, invalid(op, "the preferred topology %s is not a requisite one", p)
		}
	}
	return r, nil
}

// Satisfies reports whether a volume that is accessible from the given topologies
// is what a CO asked for: the question for a CreateVolume that finds its volume
// there already. With n requisite topologies and x accessible ones:
//
//	x >= n   the volume is accessible from every requisite topology
//	x < n    each accessible topology is a requisite one, and another one
//
// A nil requirement, one without requisite topologies, and a volume that is
// accessible from everywhere (none given, or one without segments) satisfy.
// The error is INVALID_ARGUMENT, for a requirement that is none.
func Satisfies(req *csi.TopologyRequirement, accessible ...Segments) (bool, error) {
	r, err := read("compare topologies", req)
	if err != nil {
		return false, err
	}
	if r == nil || len(accessible) == 0 {
		return true, nil
	}
	from := make([]form, 0, len(accessible))
	for _, s := range accessible {
		if len(s) == 0 {
			return true, nil
		}
		from = append(from, canonical(s))
	}
	return r.satisfied(distinct(from)), nil
}

func (r *requirement) satisfied(from []form) bool {
	if len(from) >= len(r.requisite) {
		return !slices.ContainsFunc(r.requisite, func(q form) bool { return !slices.ContainsFunc(from, q.matches) })
	}
	a := newAssignment(r.requisite)
	return !slices.ContainsFunc(from, func(f form) bool { return !a.add(f) })
}

// assignment gives to each of some topologies a requisite one of its own.
type assignment struct {
	requisite []form
	to        []form // to[i] has requisite[i]; nil: nobody
}

func newAssignment(requisite []form) *assignment {
	return &assignment{requisite, make([]form, len(requisite))}
}

// add finds one for f as well, by giving others another one where that helps, or
// reports false and changes nothing.
func (a *assignment) add(f form) bool {
	return a.assign(f, make([]bool, len(a.requisite)))
}

func (a *assignment) assign(f form, tried []bool) bool {
	for i, q := range a.requisite {
		if tried[i] || !f.matches(q) {
			continue
		}
		tried[i] = true
		if a.to[i] == nil || a.assign(a.to[i], tried) {
			a.to[i] = f
			return true
		}
	}
	return false
}

// distinct leaves out repeats.
func distinct(forms []form) []form {
	seen := map[string]bool{}
	return slices.DeleteFunc(forms, func(f form) bool {
		text := f.String()
		again := seen[text]
		seen[text] = true
		return again
	})
}
