// Package storagetest checks an implementation of package storage: what the driver, and
// through it the COs, rely on. Run it in a test of your storage.
package storagetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
)

// Config describes the storage.
type Config struct {
	// Open returns an empty storage, which works until the test ends.
	Open func(*testing.T) storage.Backend
	// Parameters are those of the StorageClass.
	Parameters map[string]string
	// MountFlags are those of the StorageClass.
	MountFlags []string
	// Size is that of a small volume in bytes; twice as much must fit as well.
	Size int64
}

// Run runs all checks that apply, as subtests.
func Run(t *testing.T, c Config) {
	for _, check := range []struct {
		name string
		do   func(*suite)
	}{
		{"idempotency", (*suite).idempotency},
		{"conflicts", (*suite).conflicts},
		{"late deletes", (*suite).lateDeletes},
		{"unknown IDs", (*suite).unknown},
		{"expansion", (*suite).expansion},
		{"capacity", (*suite).capacity},
		{"capacity edges", (*suite).capacityEdges},
		{"concurrency", (*suite).concurrency},
		{"cancellation", (*suite).cancellation},
		{"paging", (*suite).paging},
		{"clones", (*suite).clones},
		{"snapshots", (*suite).snapshots},
		{"paging of snapshots", (*suite).pagingOfSnapshots},
	} {
		t.Run(check.name, func(t *testing.T) {
			s := &suite{T: t, Config: c, b: c.Open(t)}
			check.do(s)
		})
	}
}

type suite struct {
	*testing.T
	Config
	b storage.Backend
}

func (s *suite) spec(name string) storage.VolumeSpec {
	return storage.VolumeSpec{Name: name, Capacity: storage.CapacityRange{Required: s.Size}, Parameters: maps.Clone(s.Parameters), MountFlags: s.MountFlags}
}

// retried repeats a call while its outcome is open, as COs do.
func retried[T any](call func() (T, error)) (v T, err error) {
	for range 1000 {
		if v, err = call(); csierr.IsFinal(err) {
			break
		}
	}
	return v, err
}

func (s *suite) create(spec storage.VolumeSpec) storage.Volume {
	s.Helper()
	v, err := retried(func() (storage.Volume, error) { return s.b.CreateVolume(s.Context(), spec) })
	s.must(err)
	return v
}

func (s *suite) delete(id string) {
	s.Helper()
	_, err := retried(func() (any, error) { return nil, s.b.DeleteVolume(s.Context(), id) })
	s.must(err)
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// refused expects an error of a kind, whose text has all words.
func (s *suite) refused(err error, kind csierr.Kind, words ...string) {
	s.Helper()
	if !errors.Is(err, kind) {
		s.Errorf("error is %v, want %v", err, kind)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			s.Errorf("error %q does not have %q", err, w)
		}
	}
}

func (s *suite) same(has, want storage.Volume) {
	s.Helper()
	if has.ID != want.ID || has.Name != want.Name || has.CapacityBytes != want.CapacityBytes || has.Source.String() != want.Source.String() ||
		!maps.Equal(has.Parameters, want.Parameters) || !maps.Equal(has.Context, want.Context) {
		s.Errorf("the volume is %+v, want %+v", has, want)
	}
}

func (s *suite) idempotency() {
	v := s.create(s.spec("a"))
	if v.ID == "" || v.Name != "a" || v.CapacityBytes < s.Size || v.Source != nil || !maps.Equal(v.Parameters, s.Parameters) {
		s.Errorf("created is %+v", v)
	}
	s.same(s.create(s.spec("a")), v)
	got, err := s.b.GetVolume(s.Context(), v.ID)
	s.must(err)
	s.same(got, v)
	s.delete(v.ID)
	s.delete(v.ID)
	_, err = s.b.GetVolume(s.Context(), v.ID)
	s.refused(err, csierr.NotFound)
}

func (s *suite) conflicts() {
	v := s.create(s.spec("a"))
	larger := s.spec("a")
	larger.Capacity.Required = v.CapacityBytes + 1
	_, err := s.b.CreateVolume(s.Context(), larger)
	s.refused(err, csierr.Conflict, "capacity")
	got, err := s.b.GetVolume(s.Context(), v.ID)
	s.must(err)
	s.same(got, v)
	if cloner, ok := s.b.(storage.Cloner); ok {
		source := s.create(s.spec("b"))
		larger.Source = &storage.Source{VolumeID: source.ID}
		_, err := cloner.CloneVolume(s.Context(), larger)
		s.refused(err, csierr.Conflict, "capacity", "source")
	}
	if snapshots, ok := s.b.(storage.Snapshotter); ok {
		other := s.create(s.spec("c"))
		s.snapshot(snapshots, "snap", v.ID)
		_, err := snapshots.CreateSnapshot(s.Context(), storage.SnapshotSpec{Name: "snap", SourceVolumeID: other.ID})
		s.refused(err, csierr.Conflict, v.ID)
	}
}

// lateDeletes: a delete that arrives after the name has been created again has no effect.
func (s *suite) lateDeletes() {
	old := s.create(s.spec("a"))
	s.delete(old.ID)
	v := s.create(s.spec("a"))
	if v.ID == old.ID {
		s.Errorf("the ID %s is given twice", v.ID)
	}
	s.delete(old.ID)
	_, err := s.b.ExpandVolume(s.Context(), old.ID, storage.CapacityRange{Required: 2 * s.Size})
	s.refused(err, csierr.NotFound)
	got, err := s.b.GetVolume(s.Context(), v.ID)
	s.must(err)
	s.same(got, v)
}

func (s *suite) unknown() {
	v := s.create(s.spec("a"))
	for _, id := range []string{"", "x", "..", "/", v.ID + "x", strings.Repeat("x", 128), "\x00"} {
		s.must(s.b.DeleteVolume(s.Context(), id))
		_, err := s.b.GetVolume(s.Context(), id)
		s.refused(err, csierr.NotFound)
		_, err = s.b.ExpandVolume(s.Context(), id, storage.CapacityRange{Required: 1})
		s.refused(err, csierr.NotFound)
		if snapshots, ok := s.b.(storage.Snapshotter); ok {
			s.must(snapshots.DeleteSnapshot(s.Context(), id))
			_, err := snapshots.GetSnapshot(s.Context(), id)
			s.refused(err, csierr.NotFound)
			_, err = snapshots.CreateSnapshot(s.Context(), storage.SnapshotSpec{Name: "snap", SourceVolumeID: id})
			s.refused(err, csierr.NotFound)
		}
	}
	got, err := s.b.GetVolume(s.Context(), v.ID)
	s.must(err)
	s.same(got, v)
}

func (s *suite) expansion() {
	v := s.create(s.spec("a"))
	for _, required := range []int64{0, 1, v.CapacityBytes} {
		got, err := s.b.ExpandVolume(s.Context(), v.ID, storage.CapacityRange{Required: required})
		s.must(err)
		s.same(got, v)
	}
	for range 2 {
		got, err := s.b.ExpandVolume(s.Context(), v.ID, storage.CapacityRange{Required: v.CapacityBytes + 1})
		s.must(err)
		if got.CapacityBytes <= v.CapacityBytes {
			s.Errorf("expanded it has %d bytes, as before", got.CapacityBytes)
		}
	}
	_, err := s.b.ExpandVolume(s.Context(), v.ID, storage.CapacityRange{Limit: v.CapacityBytes})
	s.refused(err, csierr.OutOfRange)
}

func (s *suite) capacity() {
	free, largest, err := s.b.Capacity(s.Context(), s.Parameters, s.MountFlags)
	s.must(err)
	if free < 2*s.Size || largest < free {
		s.Errorf("%d bytes are free, and the largest volume has %d", free, largest)
	}
	_, _, err = s.b.Capacity(s.Context(), nil, nil)
	s.must(err)
}

func (s *suite) capacityEdges() {
	for _, r := range []storage.CapacityRange{{Required: math.MaxInt64}, {Required: math.MaxInt64, Limit: math.MaxInt64}, {Required: math.MaxInt64 - 1}} {
		spec := s.spec("a")
		spec.Capacity = r
		_, err := s.b.CreateVolume(s.Context(), spec)
		s.refused(err, csierr.OutOfRange)
	}
	for i, r := range []storage.CapacityRange{{}, {Limit: math.MaxInt64}, {Required: s.Size, Limit: 2 * s.Size}} {
		spec := s.spec(fmt.Sprint("b", i))
		spec.Capacity = r
		if v := s.create(spec); !r.Contains(v.CapacityBytes) {
			s.Errorf("it has %d bytes, the request is for %s", v.CapacityBytes, r)
		}
	}
	v := s.create(s.spec("c"))
	_, err := s.b.ExpandVolume(s.Context(), v.ID, storage.CapacityRange{Required: math.MaxInt64})
	s.refused(err, csierr.OutOfRange)
	got, err := s.b.GetVolume(s.Context(), v.ID)
	s.must(err)
	s.same(got, v)
}

// concurrency: of many requests for one name, all get the same volume, and many names do not
// disturb each other.
func (s *suite) concurrency() {
	var all sync.WaitGroup
	ids := make([]string, 40)
	for i := range ids {
		all.Go(func() {
			spec := s.spec(fmt.Sprint("v", i%4))
			v, err := retried(func() (storage.Volume, error) { return s.b.CreateVolume(s.Context(), spec) })
			if err != nil {
				s.Error(err)
			}
			ids[i] = v.ID
		})
	}
	all.Wait()
	for i, id := range ids {
		if id != ids[i%4] {
			s.Errorf("v%d is %s and %s", i%4, id, ids[i%4])
		}
	}
	for _, id := range ids {
		all.Go(func() {
			if _, err := retried(func() (any, error) { return nil, s.b.DeleteVolume(s.Context(), id) }); err != nil {
				s.Error(err)
			}
		})
	}
	all.Wait()
	for _, id := range ids {
		_, err := s.b.GetVolume(s.Context(), id)
		s.refused(err, csierr.NotFound)
	}
}

// cancellation: the error of a context that has ended leaves the outcome open, and a repeat
// succeeds.
func (s *suite) cancellation() {
	ended, cancel := context.WithCancel(s.Context())
	cancel()
	if _, err := s.b.CreateVolume(ended, s.spec("a")); err != nil && csierr.IsFinal(err) {
		s.Errorf("%v is final", err)
	}
	v := s.create(s.spec("a"))
	if err := s.b.DeleteVolume(ended, v.ID); err != nil && csierr.IsFinal(err) {
		s.Errorf("%v is final", err)
	}
	s.delete(v.ID)
}

func (s *suite) paging() {
	b, ok := s.b.(storage.Lister)
	if !ok {
		s.Skip("it does not list volumes")
	}
	var want []string
	for i := range 7 {
		want = append(want, s.create(s.spec(fmt.Sprint("v", i))).ID)
	}
	checkPages(s, want, b.ListVolumes, func(v storage.Volume) string { return v.ID }, s.delete)
}

func (s *suite) pagingOfSnapshots() {
	b, ok := s.b.(storage.SnapshotLister)
	if !ok {
		s.Skip("it does not list snapshots")
	}
	v := s.create(s.spec("a"))
	snapshots := s.b.(storage.Snapshotter)
	var want []string
	for i := range 7 {
		want = append(want, s.snapshot(snapshots, fmt.Sprint("s", i), v.ID).ID)
	}
	checkPages(s, want, b.ListSnapshots, func(v storage.Snapshot) string { return v.ID }, func(id string) { s.must(snapshots.DeleteSnapshot(s.Context(), id)) })
}

// checkPages expects each object once with any size of a page, also if the last one of a page
// is deleted before the next page, and no other token.
func checkPages[T any](s *suite, want []string, list func(context.Context, string, int) ([]T, string, error), id func(T) string, remove func(string)) {
	s.Helper()
	pages := func(limit int, each func(last string)) (got []string) {
		for token := ""; ; {
			page, next, err := list(s.Context(), token, limit)
			s.must(err)
			if limit > 0 && len(page) > limit || next != "" && len(page) == 0 {
				s.Errorf("a page of %d has %d, and then %q", limit, len(page), next)
			}
			for _, v := range page {
				got = append(got, id(v))
			}
			if next == "" {
				return got
			}
			each(got[len(got)-1])
			token = next
		}
	}
	slices.Sort(want)
	for _, limit := range []int{0, 1, 2, 7, 8, 100} {
		if got := pages(limit, func(string) {}); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
			s.Errorf("pages of %d have %q, want %q", limit, got, want)
		}
	}
	if got := pages(2, remove); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		s.Errorf("pages of 2 with deletions have %q, want %q", got, want)
	}
	_, _, err := list(s.Context(), "x", 1)
	if !errors.Is(err, storage.ErrBadToken) {
		s.Errorf("after an unknown token: %v", err)
	}
}

func (s *suite) clones() {
	b, ok := s.b.(storage.Cloner)
	if !ok {
		s.Skip("it does not copy volumes")
	}
	source := s.create(s.spec("a"))
	s.copies(source.ID, &storage.Source{VolumeID: source.ID}, b.CloneVolume, func() { s.delete(source.ID) })
}

func (s *suite) snapshots() {
	b, ok := s.b.(storage.Snapshotter)
	if !ok {
		s.Skip("it has no snapshots")
	}
	v := s.create(s.spec("a"))
	snap := s.snapshot(b, "snap", v.ID)
	if snap.ID == "" || snap.Name != "snap" || snap.SourceVolumeID != v.ID || snap.CreatedAt.IsZero() {
		s.Errorf("created is %+v", snap)
	}
	if again := s.snapshot(b, "snap", v.ID); again.ID != snap.ID || !again.CreatedAt.Equal(snap.CreatedAt) {
		s.Errorf("created again it is %+v, not %+v", again, snap)
	}
	if got, err := b.GetSnapshot(s.Context(), snap.ID); err != nil || got.ID != snap.ID {
		s.Errorf("it is %+v (%v), not %+v", got, err, snap)
	}
	s.must(b.DeleteSnapshot(s.Context(), snap.ID))
	late := snap.ID
	if snap = s.snapshot(b, "snap", v.ID); snap.ID == late {
		s.Errorf("the ID %s is given twice", late)
	}
	s.must(b.DeleteSnapshot(s.Context(), late))
	s.delete(v.ID) // the snapshot stays
	s.copies(snap.ID, &storage.Source{SnapshotID: snap.ID}, b.RestoreSnapshot, func() {
		s.must(b.DeleteSnapshot(s.Context(), snap.ID))
		s.must(b.DeleteSnapshot(s.Context(), snap.ID))
	})
	_, err := b.GetSnapshot(s.Context(), snap.ID)
	s.refused(err, csierr.NotFound)
}

// copies creates volumes from a source, and removes the source.
func (s *suite) copies(id string, source *storage.Source, create func(context.Context, storage.VolumeSpec) (storage.Volume, error), remove func()) {
	s.Helper()
	spec := s.spec("copy")
	spec.Source = source
	do := func() (storage.Volume, error) { return create(s.Context(), spec) }
	v, err := retried(do)
	s.must(err)
	if v.Source.String() != id || v.CapacityBytes < s.Size {
		s.Errorf("the copy is %+v", v)
	}
	again, err := retried(do)
	s.must(err)
	s.same(again, v)
	_, err = s.b.CreateVolume(s.Context(), s.spec("copy"))
	s.refused(err, csierr.Conflict, "source")
	small := spec
	small.Name, small.Capacity = "small", storage.CapacityRange{Limit: s.Size - 1}
	_, err = create(s.Context(), small)
	s.refused(err, csierr.OutOfRange)
	remove()
	got, err := s.b.GetVolume(s.Context(), v.ID) // it does not need its source
	s.must(err)
	s.same(got, v)
	spec.Name = "late"
	_, err = create(s.Context(), spec)
	s.refused(err, csierr.NotFound)
}

func (s *suite) snapshot(b storage.Snapshotter, name, volumeID string) storage.Snapshot {
	s.Helper()
	snap, err := retried(func() (storage.Snapshot, error) {
		return b.CreateSnapshot(s.Context(), storage.SnapshotSpec{Name: name, SourceVolumeID: volumeID})
	})
	s.must(err)
	return snap
}
