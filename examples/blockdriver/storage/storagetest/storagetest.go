// Package storagetest is the contract of package storage as tests: run it against your
// Backend before you run the driver.
//
//	func TestStorage(t *testing.T) {
//		storagetest.Run(t, storagetest.Config{Open: open, Nodes: [2]string{"node-1", "node-2"}})
//	}
//
// Run creates, attaches and deletes volumes, and needs no device on this machine. RunDevices
// is for the half that the nodes use, and makes devices appear here. Use -race. What the pods
// see in the volumes is checked by package csitest, through the driver.
package storagetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
)

// Config describes the storage under test.
type Config struct {
	// Open returns a storage without volumes, and registers with t.Cleanup what ends it.
	Open func(t *testing.T) storage.Backend
	// Nodes exist, and every volume can be attached to each.
	Nodes [2]string
	// Size is the size of volumes in bytes. Default: 16 MiB.
	Size int64
	// Parameters are those of the volumes.
	Parameters map[string]string
	// Mutable are parameters of volumes that a storage.Modifier accepts.
	Mutable map[string]string
}

// Run runs the contract as subtests; those of interfaces that the storage does not
// implement are skipped.
func Run(t *testing.T, cfg Config) {
	cfg.Size = cmp.Or(cfg.Size, 16<<20)
	for _, x := range []struct {
		name string
		test func(*suite)
	}{
		{"create", (*suite).create}, {"conflict", (*suite).conflict}, {"capacity", (*suite).capacity}, {"unknown IDs", (*suite).unknown},
		{"delete", (*suite).delete}, {"expand", (*suite).expand}, {"list", (*suite).list}, {"list while deleting", (*suite).listDeleted},
		{"attach", (*suite).attach}, {"fencing", (*suite).fencing}, {"concurrent", (*suite).concurrent}, {"cancelled", (*suite).cancelled},
		{"places", (*suite).places},
		{"snapshots", (*suite).snapshots}, {"clones", (*suite).clones}, {"modify", (*suite).modify}, {"groups", (*suite).groups},
		{"blocks", (*suite).blocks}, {"health", (*suite).health},
	} {
		t.Run(x.name, func(t *testing.T) { x.test(&suite{T: t, Config: cfg, b: cfg.Open(t)}) })
	}
}

type suite struct {
	*testing.T
	Config
	b storage.Backend
}

func (s *suite) spec(name string) storage.VolumeSpec {
	return storage.VolumeSpec{
		Name: name, AccessType: storage.AccessBlock, Capacity: storage.CapacityRange{Required: s.Size}, Parameters: maps.Clone(s.Parameters),
	}
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// wants checks the kind of an error; for nil that there is none.
func (s *suite) wants(what string, err, kind error) {
	s.Helper()
	if !errors.Is(err, kind) {
		s.Errorf("%s: the error is %v, want %v", what, err, kind)
	}
}

func (s *suite) mustCreate(name string) storage.Volume {
	s.Helper()
	v, err := s.b.CreateVolume(s.Context(), s.spec(name))
	s.must(err)
	return v
}

func (s *suite) attachment(node int) storage.Attachment {
	return storage.Attachment{NodeID: s.Nodes[node], AccessMode: "SINGLE_NODE_WRITER"}
}

// wantVolumes checks that there are exactly these.
func (s *suite) wantVolumes(want ...string) {
	s.Helper()
	page, next, err := s.b.ListVolumes(s.Context(), "", 0)
	s.must(err)
	var ids []string
	for _, v := range page {
		ids = append(ids, v.ID)
	}
	slices.Sort(ids)
	slices.Sort(want)
	if !slices.Equal(ids, want) || next != "" {
		s.Errorf("the list has %q and the token %q, want %q", ids, next, want)
	}
}

// wantVolume checks that GetVolume returns the same as another method.
func (s *suite) wantVolume(v storage.Volume) {
	s.Helper()
	got, err := s.b.GetVolume(s.Context(), v.ID)
	s.must(err)
	if !reflect.DeepEqual(got, v) {
		s.Errorf("GetVolume returns %+v, want %+v", got, v)
	}
}

func (s *suite) create() {
	v := s.mustCreate("a")
	want := s.spec("a")
	if v.ID == "" || v.Name != "a" || v.AccessType != want.AccessType || !want.Capacity.Contains(v.CapacityBytes) || !maps.Equal(v.Parameters, want.Parameters) {
		s.Errorf("created %+v", v)
	}
	if v.Source != nil || v.HoldsData || v.Attachment != nil {
		s.Errorf("a new volume is not empty: %+v", v)
	}
	s.wantVolume(v)
	if again := s.mustCreate("a"); !reflect.DeepEqual(again, v) {
		s.Errorf("on a repeat %+v, at first %+v", again, v)
	}
	other := s.mustCreate("b")
	ext4 := s.spec("c")
	ext4.AccessType = storage.DefaultFSType
	file, err := s.b.CreateVolume(s.Context(), ext4)
	s.must(err)
	if file.AccessType != storage.DefaultFSType {
		s.Errorf("created %+v", file)
	}
	s.wantVolumes(v.ID, other.ID, file.ID)
}

// A repeat with other properties lists all that differs, and changes nothing.
func (s *suite) conflict() {
	v := s.mustCreate("a")
	larger := func(x *storage.VolumeSpec) { x.Capacity.Required = v.CapacityBytes + 1 }
	smaller := func(x *storage.VolumeSpec) { x.Capacity = storage.CapacityRange{Limit: v.CapacityBytes - 1} }
	file := func(x *storage.VolumeSpec) { x.AccessType = storage.DefaultFSType }
	for _, x := range []struct {
		change []func(*storage.VolumeSpec)
		words  []string
	}{
		{[]func(*storage.VolumeSpec){larger}, []string{"capacity"}},
		{[]func(*storage.VolumeSpec){smaller}, []string{"capacity"}},
		{[]func(*storage.VolumeSpec){file}, []string{"access type"}},
		{[]func(*storage.VolumeSpec){larger, file}, []string{"capacity", "access type"}},
	} {
		spec := s.spec("a")
		for _, change := range x.change {
			change(&spec)
		}
		_, err := s.b.CreateVolume(s.Context(), spec)
		s.wants(fmt.Sprintf("create with another %s", x.words), err, csierr.Conflict)
		for _, word := range x.words {
			if err != nil && !strings.Contains(err.Error(), word) {
				s.Errorf("the error does not name the %s: %v", word, err)
			}
		}
	}
	s.wantVolume(v)
	s.wantVolumes(v.ID)
}

// The size is in the range, or the error is final and nothing is left.
func (s *suite) capacity() {
	const largest = math.MaxInt64
	smallest := storage.MinimumSizes[storage.AccessBlock]
	ranges := []storage.CapacityRange{
		{}, {Required: 1}, {Required: smallest}, {Required: smallest + 1}, {Limit: smallest - 1}, {Required: 1, Limit: smallest}, {Limit: 1},
		{Required: s.Size + 1}, {Required: s.Size + 1, Limit: s.Size + 1}, {Required: s.Size, Limit: s.Size}, {Limit: largest},
		{Required: largest}, {Required: largest - 1}, {Required: largest, Limit: largest}, {Required: largest - 1<<20, Limit: largest}, {Required: largest/2 + 1},
	}
	base := s.mustCreate("base")
	for i, r := range ranges {
		spec := s.spec(fmt.Sprint("v", i))
		spec.Capacity = r
		v, err := s.b.CreateVolume(s.Context(), spec)
		switch {
		case err != nil && !errors.Is(err, csierr.OutOfRange) && !errors.Is(err, csierr.NoSpace):
			s.Errorf("create with %s: %v", r, err)
		case err != nil:
			if r.Required <= s.Size && r.Limit == 0 || r.Limit == largest && r.Required == 0 || r.Limit == smallest || r.Limit == s.Size && s.Size%(1<<20) == 0 {
				s.Errorf("create with %s: %v", r, err)
			}
			s.wantVolumes(base.ID)
		default:
			if !r.Contains(v.CapacityBytes) || v.CapacityBytes < smallest {
				s.Errorf("create with %s: %d bytes", r, v.CapacityBytes)
			}
			s.wantVolume(v)
			s.must(s.b.DeleteVolume(s.Context(), v.ID))
		}
	}
	for _, r := range ranges {
		v, err := s.b.ExpandVolume(s.Context(), base.ID, r)
		now, get := s.b.GetVolume(s.Context(), base.ID)
		s.must(get)
		switch {
		case err != nil && !errors.Is(err, csierr.OutOfRange) && !errors.Is(err, csierr.NoSpace):
			s.Errorf("expand to %s: %v", r, err)
		case err != nil && now.CapacityBytes != base.CapacityBytes:
			s.Errorf("expand to %s failed with %v, and the volume grew from %d to %d bytes", r, err, base.CapacityBytes, now.CapacityBytes)
		case err == nil && (!r.Contains(v.CapacityBytes) || now.CapacityBytes != v.CapacityBytes || now.CapacityBytes < base.CapacityBytes):
			s.Errorf("expand to %s: %d bytes, GetVolume: %d", r, v.CapacityBytes, now.CapacityBytes)
		}
		base = now
	}
}

// unknownIDs have never been volumes. A CO may send any of them.
var unknownIDs = []string{"no-such-volume", "..", "../../etc", "a/b", "a\x00b", "é", strings.Repeat("x", 128)}

func (s *suite) unknown() {
	ctx := s.Context()
	v := s.mustCreate("a")
	for _, id := range append(unknownIDs, v.ID+"x", strings.ToUpper(v.ID)+"X", v.ID[:len(v.ID)-1]) {
		_, err := s.b.GetVolume(ctx, id)
		s.wants(fmt.Sprintf("get %q", id), err, csierr.NotFound)
		_, err = s.b.ExpandVolume(ctx, id, storage.CapacityRange{Required: s.Size})
		s.wants(fmt.Sprintf("expand %q", id), err, csierr.NotFound)
		_, err = s.b.AttachVolume(ctx, id, s.attachment(0))
		s.wants(fmt.Sprintf("attach %q", id), err, csierr.NotFound)
		s.wants(fmt.Sprintf("detach %q", id), s.b.DetachVolume(ctx, id, s.Nodes[0]), nil)
		s.wants(fmt.Sprintf("delete %q", id), s.b.DeleteVolume(ctx, id), nil)
	}
	s.wantVolume(v)
}

func (s *suite) delete() {
	ctx := s.Context()
	v := s.mustCreate("a")
	_, err := s.b.AttachVolume(ctx, v.ID, s.attachment(0))
	s.must(err)
	s.wants("delete an attached volume", s.b.DeleteVolume(ctx, v.ID), storage.ErrInUse)
	s.wantVolumes(v.ID)
	s.must(s.b.DetachVolume(ctx, v.ID, s.Nodes[0]))
	for range 2 {
		s.wants("delete", s.b.DeleteVolume(ctx, v.ID), nil)
	}
	_, err = s.b.GetVolume(ctx, v.ID)
	s.wants("get a deleted volume", err, csierr.NotFound)
	s.wantVolumes()

	// The repeat of a delete, or of a detach, arrives when the name is in use again.
	again := s.mustCreate("a")
	if again.ID == v.ID {
		s.Error("the ID of a deleted volume was used again")
	}
	s.wants("late delete", s.b.DeleteVolume(ctx, v.ID), nil)
	s.wantVolumes(again.ID)
}

func (s *suite) expand() {
	ctx := s.Context()
	v := s.mustCreate("a")
	size := 2 * v.CapacityBytes
	for range 2 {
		grown, err := s.b.ExpandVolume(ctx, v.ID, storage.CapacityRange{Required: size})
		s.must(err)
		if grown.CapacityBytes < size {
			s.Errorf("expand to %d: %d bytes", size, grown.CapacityBytes)
		}
		s.wantVolume(grown)
		v = grown
	}
	less, err := s.b.ExpandVolume(ctx, v.ID, storage.CapacityRange{Required: s.Size})
	s.must(err)
	if less.CapacityBytes != v.CapacityBytes {
		s.Errorf("expand to less than it has: %d bytes", less.CapacityBytes)
	}
	_, err = s.b.ExpandVolume(ctx, v.ID, storage.CapacityRange{Limit: v.CapacityBytes - 1})
	s.wants("expand to a limit below its size", err, csierr.OutOfRange)
	s.wantVolume(v)

	// In use.
	_, err = s.b.AttachVolume(ctx, v.ID, s.attachment(0))
	s.must(err)
	grown, err := s.b.ExpandVolume(ctx, v.ID, storage.CapacityRange{Required: 2 * size})
	s.must(err)
	if grown.CapacityBytes < 2*size || grown.Attachment == nil {
		s.Errorf("expand an attached volume: %+v", grown)
	}
}

// pages reads a list to its end. after is called behind each page.
func (s *suite) pages(limit int, page func(token string) (ids []string, next string, err error), after func(ids []string)) (all []string) {
	s.Helper()
	token := ""
	for range 100 {
		ids, next, err := page(token)
		s.must(err)
		if limit > 0 && len(ids) > limit {
			s.Errorf("a page for at most %d has %d", limit, len(ids))
		}
		all = append(all, ids...)
		after(ids)
		if token = next; token == "" {
			return all
		}
	}
	s.Fatalf("the list with the limit %d has no end", limit)
	return nil
}

func (s *suite) volumePage(limit int) func(string) ([]string, string, error) {
	return func(token string) (ids []string, next string, err error) {
		page, next, err := s.b.ListVolumes(s.Context(), token, limit)
		for _, v := range page {
			ids = append(ids, v.ID)
		}
		return ids, next, err
	}
}

func (s *suite) list() {
	s.wantVolumes()
	var want []string
	for i := range 5 {
		want = append(want, s.mustCreate(fmt.Sprint("v", i)).ID)
	}
	slices.Sort(want)
	for _, limit := range []int{0, 1, 2, 4, 5, 6, math.MaxInt32} {
		got := s.pages(limit, s.volumePage(limit), func(ids []string) {
			if len(ids) == 0 {
				s.Errorf("with the limit %d the last page has a token", limit)
			}
		})
		slices.Sort(got)
		if !slices.Equal(got, want) {
			s.Errorf("the pages of %d have %q, want %q", limit, got, want)
		}
	}
	for _, token := range []string{"no such token", "-1", "5", "\x00", strings.Repeat("x", 128)} {
		_, _, err := s.b.ListVolumes(s.Context(), token, 1)
		s.wants(fmt.Sprintf("list with the token %q", token), err, storage.ErrBadToken)
	}
	v, err := s.b.GetVolume(s.Context(), want[0])
	s.must(err)
	page, _, err := s.b.ListVolumes(s.Context(), "", 0)
	s.must(err)
	if i := slices.IndexFunc(page, func(x storage.Volume) bool { return x.ID == v.ID }); i < 0 || !reflect.DeepEqual(page[i], v) {
		s.Errorf("the list has another %+v", v)
	}
}

// What a page was listed from is deleted before the next one is asked for: the volumes that
// stay are listed, each once.
func (s *suite) listDeleted() {
	stay := map[string]bool{}
	for i := range 7 {
		stay[s.mustCreate(fmt.Sprint("v", i)).ID] = true
	}
	got := s.pages(2, s.volumePage(2), func(ids []string) {
		for _, id := range ids {
			s.must(s.b.DeleteVolume(s.Context(), id))
		}
	})
	slices.Sort(got)
	if want := slices.Sorted(maps.Keys(stay)); !slices.Equal(got, want) {
		s.Errorf("listed %q, want %q", got, want)
	}
	s.wantVolumes()
}

func (s *suite) attach() {
	ctx := s.Context()
	v := s.mustCreate("a")
	a := s.attachment(0)
	first, err := s.b.AttachVolume(ctx, v.ID, a)
	s.must(err)
	again, err := s.b.AttachVolume(ctx, v.ID, a)
	s.must(err)
	if !maps.Equal(first, again) {
		s.Errorf("the publish context is %v, on a repeat %v", first, again)
	}
	v.Attachment = &a
	s.wantVolume(v)

	other := a
	other.ReadOnly, other.AccessMode = true, "SINGLE_NODE_MULTI_WRITER"
	_, err = s.b.AttachVolume(ctx, v.ID, other)
	s.wants("attach with other properties", err, csierr.Conflict)
	for _, word := range []string{"readonly", "access mode"} {
		if err != nil && !strings.Contains(err.Error(), word) {
			s.Errorf("the error does not name the %s: %v", word, err)
		}
	}
	unknown := a
	unknown.NodeID = "no-such-node"
	free := s.mustCreate("free")
	_, err = s.b.AttachVolume(ctx, free.ID, unknown)
	s.wants("attach to a node that does not exist", err, csierr.NotFound)
	s.wantVolume(free)

	s.wants("detach from a node that has it not", s.b.DetachVolume(ctx, v.ID, s.Nodes[1]), nil)
	s.wants("detach from a node that does not exist", s.b.DetachVolume(ctx, v.ID, "no-such-node"), nil)
	s.wantVolume(v)
	for _, nodes := range []string{s.Nodes[0], ""} { // from one, from all
		_, err = s.b.AttachVolume(ctx, v.ID, a)
		s.must(err)
		for range 2 {
			s.wants("detach", s.b.DetachVolume(ctx, v.ID, nodes), nil)
		}
		v.Attachment = nil
		got, err := s.b.GetVolume(ctx, v.ID)
		s.must(err)
		if got.Attachment != nil {
			s.Errorf("detached from %q: %+v", nodes, got)
		}
	}
}

// A volume is on one node at a time, or its file system is destroyed.
func (s *suite) fencing() {
	ctx := s.Context()
	v := s.mustCreate("a")
	for range 20 {
		errs := make([]error, 8)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { _, errs[i] = s.b.AttachVolume(ctx, v.ID, s.attachment(i%2)) })
		}
		wg.Wait()
		got, err := s.b.GetVolume(ctx, v.ID)
		s.must(err)
		if got.Attachment == nil {
			s.Fatalf("attached to no node: %v", errs)
		}
		for i, err := range errs {
			if s.Nodes[i%2] == got.Attachment.NodeID {
				s.wants("attach to the node that has it", err, nil)
			} else {
				s.wants("attach to another node", err, storage.ErrInUse)
			}
		}
		s.must(s.b.DetachVolume(ctx, v.ID, ""))
	}
	_, err := s.b.AttachVolume(ctx, v.ID, s.attachment(0))
	s.must(err)
	_, err = s.b.AttachVolume(ctx, v.ID, s.attachment(1))
	s.wants("attach to another node", err, storage.ErrInUse)
	s.must(s.b.DetachVolume(ctx, v.ID, s.Nodes[0]))
	_, err = s.b.AttachVolume(ctx, v.ID, s.attachment(1))
	s.wants("attach to another node after the detach", err, nil)
}

// One name gives one volume.
func (s *suite) concurrent() {
	ctx := s.Context()
	var want []string
	for round := range 10 {
		ids := make([]string, 8)
		var wg sync.WaitGroup
		for i := range ids {
			wg.Go(func() {
				v, err := s.b.CreateVolume(ctx, s.spec(fmt.Sprint("v", round)))
				if err != nil && csierr.IsFinal(err) {
					s.Error(err)
				}
				ids[i] = v.ID
				_, _, err = s.b.ListVolumes(ctx, "", 0)
				s.wants("list", err, nil)
			})
		}
		wg.Wait()
		v := s.mustCreate(fmt.Sprint("v", round))
		for _, id := range ids {
			if id != "" && id != v.ID {
				s.Errorf("one name, and the volumes %s and %s", id, v.ID)
			}
		}
		want = append(want, v.ID)
	}
	s.wantVolumes(want...)
	var wg sync.WaitGroup
	for _, id := range append(want, want...) {
		wg.Go(func() {
			if _, err := s.b.ExpandVolume(ctx, id, storage.CapacityRange{Required: 2 * s.Size}); err != nil && csierr.IsFinal(err) && !errors.Is(err, csierr.NotFound) {
				s.Error(err)
			}
		})
		wg.Go(func() {
			if err := s.b.DeleteVolume(ctx, id); err != nil && csierr.IsFinal(err) {
				s.Error(err)
			}
		})
	}
	wg.Wait()
	for _, id := range want {
		s.must(s.b.DeleteVolume(ctx, id))
	}
	s.wantVolumes()
}

// A call whose context has ended did all or nothing as far as the CO can see: its error is
// not final, and a repeat converges.
func (s *suite) cancelled() {
	gone, cancel := context.WithCancel(s.Context())
	cancel()
	notFinal := func(what string, err error) {
		s.Helper()
		if err != nil && csierr.IsFinal(err) {
			s.Errorf("%s with a cancelled context: %v", what, err)
		}
	}
	_, err := s.b.CreateVolume(gone, s.spec("a"))
	notFinal("create", err)
	v := s.mustCreate("a")
	s.wantVolumes(v.ID)

	r := storage.CapacityRange{Required: 2 * v.CapacityBytes}
	_, err = s.b.ExpandVolume(gone, v.ID, r)
	notFinal("expand", err)
	v, err = s.b.ExpandVolume(s.Context(), v.ID, r)
	s.must(err)
	s.wantVolume(v)

	_, err = s.b.AttachVolume(gone, v.ID, s.attachment(0))
	notFinal("attach", err)
	_, err = s.b.AttachVolume(s.Context(), v.ID, s.attachment(0))
	s.must(err)

	notFinal("detach", s.b.DetachVolume(gone, v.ID, s.Nodes[0]))
	s.must(s.b.DetachVolume(s.Context(), v.ID, s.Nodes[0]))
	_, err = s.b.AttachVolume(s.Context(), v.ID, s.attachment(1))
	s.must(err)
	s.must(s.b.DetachVolume(s.Context(), v.ID, ""))

	notFinal("delete", s.b.DeleteVolume(gone, v.ID))
	s.must(s.b.DeleteVolume(s.Context(), v.ID))
	s.wantVolumes()
}

func (s *suite) places() {
	ctx := s.Context()
	places, err := s.b.Places(ctx, s.Parameters)
	s.must(err)
	if len(places) == 0 {
		s.Fatal("the storage is accessible from nowhere")
	}
	var largest int64
	for _, p := range places {
		if p.Free < 0 || p.MaxVolume < 0 {
			s.Errorf("a place with %+v", p)
		}
		if p.MaxVolume > 0 {
			p.Free = min(p.Free, p.MaxVolume)
		}
		largest = max(largest, p.Free)
	}
	if largest < math.MaxInt64/2 {
		spec := s.spec("a")
		spec.Capacity.Required = 2*largest + s.Size
		v, err := s.b.CreateVolume(ctx, spec)
		if !errors.Is(err, csierr.NoSpace) && !errors.Is(err, csierr.OutOfRange) {
			s.Errorf("a volume of %d bytes, where %d are free: %+v, %v", spec.Capacity.Required, largest, v, err)
		}
	}
	// What CreateVolume refuses, Places refuses.
	parameters := map[string]string{"no-such-parameter": "x"}
	spec := s.spec("b")
	spec.Parameters = parameters
	_, err = s.b.CreateVolume(ctx, spec)
	s.wants("create with unknown parameters", err, csierr.Invalid)
	_, err = s.b.Places(ctx, parameters)
	s.wants("places for unknown parameters", err, csierr.Invalid)
	s.wantVolumes()
}
