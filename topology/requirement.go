package topology

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// requirement is a validated csi.TopologyRequirement.
type requirement struct {
	requisite []form // without repeats
	preferred []form
}

// read validates req. It returns nil for nil, which allows every topology.
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
			if err := joined(segmentErrors(FromTopology(t))); err != nil {
				return nil, invalid(op, "%s[%d]: %w", list.name, i, err)
			}
			*list.out = append(*list.out, canonical(FromTopology(t)))
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
			return nil, invalid(op, "the preferred topology %s is not among the requisite ones", p)
		}
	}
	return r, nil
}

// Satisfies reports whether an existing volume satisfies the accessibility_requirements of
// a request, such as a CreateVolume that is repeated or that names a source: accessible are
// the volume's accessible topologies. With x accessible topologies and n requisite ones, as
// in the comments of TopologyRequirement:
//
//	x >= n   the volume is accessible from every requisite topology
//	x < n    each accessible topology is compatible with a different requisite one
//
// A nil requirement or one without requisite topologies is always satisfied, and so is
// any requirement by a volume that is accessible from everywhere (no topology given, or
// one without segments). The error is INVALID_ARGUMENT, for an invalid requirement.
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
		return !slices.ContainsFunc(r.requisite, func(q form) bool { return !slices.ContainsFunc(from, q.compatible) })
	}
	a := newAssignment(r.requisite)
	return !slices.ContainsFunc(from, func(f form) bool { return !a.add(f) })
}

// assignment is a matching of topologies to different requisite ones (an augmenting path
// algorithm).
type assignment struct {
	requisite []form
	to        []form // to[i] is assigned requisite[i]; nil: none is
}

func newAssignment(requisite []form) *assignment {
	return &assignment{requisite, make([]form, len(requisite))}
}

// add assigns one to f, reassigning others where necessary, or returns false and changes
// nothing.
func (a *assignment) add(f form) bool {
	return a.assign(f, make([]bool, len(a.requisite)))
}

func (a *assignment) assign(f form, tried []bool) bool {
	for i, q := range a.requisite {
		if tried[i] || !f.compatible(q) {
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

// distinct removes duplicates.
func distinct(forms []form) []form {
	seen := map[string]bool{}
	return slices.DeleteFunc(forms, func(f form) bool {
		text := f.String()
		again := seen[text]
		seen[text] = true
		return again
	})
}
