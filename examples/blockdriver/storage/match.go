package storage

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/topology"
)

// Failures that have a kind of package csierr and a meaning of their own.
var (
	// ErrInUse: the volume is attached, or a copy of it is being made.
	ErrInUse = csierr.Precondition.New("in use")
	// ErrNotAccessible: the volume cannot be reached from there.
	ErrNotAccessible = csierr.Precondition.New("not accessible")
	// ErrBadToken: the token is not one of this list. ABORTED, as the spec says.
	ErrBadToken = csierr.Busy.New("not a token of this list")
)

// Matches returns csierr.Conflict if v is not the volume that s describes, with all
// differences in one message. CreateVolume calls it for a volume that exists.
func (v Volume) Matches(s VolumeSpec) error {
	var d differences
	d.add("name", v.Name, s.Name)
	if !s.Capacity.Contains(v.CapacityBytes) {
		d = append(d, fmt.Sprintf("capacity: it has %d bytes, the request wants %s", v.CapacityBytes, s.Capacity))
	}
	d.add("access type", v.AccessType, s.AccessType)
	d.add("source", v.Source.String(), s.Source.String())
	if ok, err := topology.Satisfies(s.Requirement, v.Segments); !ok {
		d = append(d, fmt.Sprintf("accessibility_requirements: it is accessible from %s (%v)", v.Segments, err))
	}
	d.addMap("parameters", v.Parameters, s.Parameters)
	d.addMap("mutable_parameters", v.Mutable, s.Mutable)
	return d.conflict("volume " + v.ID)
}

// Matches returns csierr.Conflict if a is not the attachment that is wanted on its node.
func (a Attachment) Matches(wanted Attachment) error {
	var d differences
	d.add("readonly", fmt.Sprint(a.ReadOnly), fmt.Sprint(wanted.ReadOnly))
	d.add("access mode", a.AccessMode, wanted.AccessMode)
	return d.conflict("the attachment to node " + a.NodeID)
}

// differences are what an object and a request disagree on.
type differences []string

func (d *differences) add(what, has, wants string) {
	if has != wants {
		*d = append(*d, fmt.Sprintf("%s: it has %q, the request wants %q", what, has, wants))
	}
}

func (d *differences) addMap(field string, has, wants map[string]string) {
	keys := maps.Clone(has)
	if keys == nil {
		keys = map[string]string{}
	}
	maps.Copy(keys, wants)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		h, inObject := has[key]
		w, inRequest := wants[key]
		if inObject != inRequest || h != w {
			*d = append(*d, fmt.Sprintf("%s[%q]: it has %q, the request wants %q", field, key, h, w))
		}
	}
}

func (d differences) conflict(object string) error {
	if len(d) == 0 {
		return nil
	}
	return fmt.Errorf("%s %w: %s; use another name, or delete it first", object, csierr.Conflict, strings.Join(d, "; "))
}
