package storagetest

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
)

// as returns the storage as T, or skips the test.
func as[T any](s *suite) T {
	s.Helper()
	b, ok := s.b.(T)
	if !ok {
		s.Skipf("the storage is no %s", reflect.TypeFor[T]().Name())
	}
	return b
}

// finish repeats a call whose work is in flight, as a CO does.
func finish[T any](s *suite, call func() (T, error)) T {
	s.Helper()
	for {
		v, err := call()
		var pending interface{ Pending() <-chan struct{} }
		if !errors.As(err, &pending) {
			s.must(err)
			return v
		}
		<-pending.Pending()
	}
}

func (s *suite) snapshots() {
	b, ctx := as[storage.Snapshotter](s), s.Context()
	a, other := s.mustCreate("a"), s.mustCreate("b")
	take := func(name string, source storage.Volume) storage.Snapshot {
		s.Helper()
		return finish(s, func() (storage.Snapshot, error) {
			return b.CreateSnapshot(ctx, storage.SnapshotSpec{Name: name, SourceVolumeID: source.ID})
		})
	}
	one := take("s1", a)
	if one.ID == "" || one.Name != "s1" || one.SourceVolumeID != a.ID || one.SizeBytes != a.CapacityBytes || one.CreatedAt.IsZero() || one.GroupID != "" {
		s.Errorf("created %+v", one)
	}
	if again := take("s1", a); !sameSnapshot(again, one) {
		s.Errorf("on a repeat %+v, at first %+v", again, one)
	}
	if got, err := b.GetSnapshot(ctx, one.ID); err != nil || !sameSnapshot(got, one) {
		s.Errorf("GetSnapshot returns %+v, %v; want %+v", got, err, one)
	}
	_, err := b.CreateSnapshot(ctx, storage.SnapshotSpec{Name: "s1", SourceVolumeID: other.ID})
	s.wants("another source", err, csierr.Conflict)
	_, err = b.CreateSnapshot(ctx, storage.SnapshotSpec{Name: "s9", SourceVolumeID: "no-such-volume"})
	s.wants("a source that does not exist", err, csierr.NotFound)
	for _, id := range append(unknownIDs, a.ID) {
		_, err = b.GetSnapshot(ctx, id)
		s.wants(fmt.Sprintf("get %q", id), err, csierr.NotFound)
		s.wants(fmt.Sprintf("delete %q", id), b.DeleteSnapshot(ctx, id), nil)
	}

	want := map[string][]string{a.ID: {one.ID, take("s2", a).ID, take("s3", a).ID}, other.ID: {take("s4", other).ID}, "no-such-volume": nil}
	want[""] = slices.Concat(want[a.ID], want[other.ID])
	for source, ids := range want {
		for _, limit := range []int{0, 1, 2, 5} {
			got := s.pages(limit, func(token string) (ids []string, next string, err error) {
				page, next, err := b.ListSnapshots(ctx, source, token, limit)
				for _, x := range page {
					ids = append(ids, x.ID)
				}
				return ids, next, err
			}, func([]string) {})
			if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(ids))) {
				s.Errorf("the snapshots of %q in pages of %d are %q, want %q", source, limit, got, ids)
			}
		}
	}
	_, _, err = b.ListSnapshots(ctx, "", "no such token", 1)
	s.wants("list with a bad token", err, storage.ErrBadToken)

	s.copies(func(v storage.VolumeSpec) (storage.Volume, error) { return b.RestoreSnapshot(ctx, v) },
		storage.Source{SnapshotID: one.ID}, storage.Source{SnapshotID: "no-such-snapshot"}, a)

	for range 2 {
		s.wants("delete", b.DeleteSnapshot(ctx, one.ID), nil)
	}
	if again := take("s1", a); again.ID == one.ID {
		s.Error("the ID of a deleted snapshot was used again")
	} else {
		s.wants("late delete", b.DeleteSnapshot(ctx, one.ID), nil)
		_, err = b.GetSnapshot(ctx, again.ID)
		s.wants("get", err, nil)
	}
	s.wantVolume(a)
}

func sameSnapshot(a, b storage.Snapshot) bool {
	at := a.CreatedAt.Equal(b.CreatedAt)
	a.CreatedAt = b.CreatedAt
	return at && reflect.DeepEqual(a, b)
}

func (s *suite) clones() {
	b, ctx := as[storage.Cloner](s), s.Context()
	a := s.mustCreate("a")
	s.copies(func(v storage.VolumeSpec) (storage.Volume, error) { return b.CloneVolume(ctx, v) },
		storage.Source{VolumeID: a.ID}, storage.Source{VolumeID: "no-such-volume"}, a)
	s.wantVolume(a)
}

// copies checks volumes that are created from a source of the size and type of the volume a.
func (s *suite) copies(create func(storage.VolumeSpec) (storage.Volume, error), source, unknown storage.Source, a storage.Volume) {
	s.Helper()
	spec := s.spec("copy")
	spec.Source = &source
	spec.Capacity = storage.CapacityRange{}
	call := func() (storage.Volume, error) { return create(spec) }
	v := finish(s, call)
	if v.CapacityBytes < a.CapacityBytes || v.AccessType != a.AccessType || v.Source.String() != source.String() {
		s.Errorf("a copy is %+v", v)
	}
	if again := finish(s, call); !reflect.DeepEqual(again, v) {
		s.Errorf("on a repeat %+v, at first %+v", again, v)
	}
	s.wantVolume(v)
	_, err := s.b.CreateVolume(s.Context(), s.spec("copy"))
	s.wants("create an empty volume of its name", err, csierr.Conflict)

	spec.Name, spec.Capacity = "larger", storage.CapacityRange{Required: 2 * a.CapacityBytes}
	if larger := finish(s, call); larger.CapacityBytes < 2*a.CapacityBytes {
		s.Errorf("a larger copy is %+v", larger)
	}
	spec.Name, spec.Capacity = "smaller", storage.CapacityRange{Limit: a.CapacityBytes - 1}
	_, err = create(spec)
	s.wants("a copy smaller than its source", err, csierr.OutOfRange)
	spec.Name, spec.Capacity, spec.Source = "none", storage.CapacityRange{}, &unknown
	_, err = create(spec)
	s.wants("a copy of what does not exist", err, csierr.NotFound)
}

func (s *suite) modify() {
	b, ctx := as[storage.Modifier](s), s.Context()
	s.wants("unknown parameters", b.CheckMutable(map[string]string{"no-such-parameter": "x"}), csierr.Invalid)
	s.wants("no parameters", b.CheckMutable(nil), nil)
	if len(s.Mutable) == 0 {
		s.Skip("Config.Mutable is not set")
	}
	s.wants("the parameters", b.CheckMutable(s.Mutable), nil)
	v := s.mustCreate("a")
	for range 2 {
		s.wants("modify", b.ModifyVolume(ctx, v.ID, s.Mutable), nil)
	}
	got, err := s.b.GetVolume(ctx, v.ID)
	s.must(err)
	if !maps.Equal(got.Mutable, s.Mutable) {
		s.Errorf("modified: %+v", got)
	}
	s.wants("modify what does not exist", b.ModifyVolume(ctx, "no-such-volume", s.Mutable), csierr.NotFound)
	spec := s.spec("b")
	spec.Mutable = s.Mutable
	created, err := s.b.CreateVolume(ctx, spec)
	s.must(err)
	if !maps.Equal(created.Mutable, s.Mutable) {
		s.Errorf("created: %+v", created)
	}
}

func (s *suite) groups() {
	b, ctx := as[storage.GroupSnapshotter](s), s.Context()
	ids := []string{s.mustCreate("a").ID, s.mustCreate("b").ID}
	slices.Sort(ids)
	create := func(ids ...string) func() (storage.Group, error) {
		return func() (storage.Group, error) { return b.CreateGroup(ctx, storage.GroupSpec{Name: "g", VolumeIDs: ids}) }
	}
	g := finish(s, create(ids...))
	var members []string
	for _, x := range g.Snapshots {
		members = append(members, x.ID)
		if x.GroupID != g.ID || !slices.Contains(ids, x.SourceVolumeID) {
			s.Errorf("a member of %s is %+v", g.ID, x)
		}
		got, err := b.GetSnapshot(ctx, x.ID)
		if err != nil || !sameSnapshot(got, x) {
			s.Errorf("GetSnapshot returns %+v, %v; want %+v", got, err, x)
		}
	}
	if g.ID == "" || g.Name != "g" || g.CreatedAt.IsZero() || len(members) != 2 {
		s.Errorf("created %+v", g)
	}
	if again := finish(s, create(ids...)); again.ID != g.ID || len(again.Snapshots) != 2 {
		s.Errorf("on a repeat %+v, at first %+v", again, g)
	}
	_, err := create(ids[0])()
	s.wants("a group of other volumes", err, csierr.Conflict)
	_, err = b.CreateGroup(ctx, storage.GroupSpec{Name: "h", VolumeIDs: ids, Parameters: map[string]string{"no-such-parameter": "x"}})
	s.wants("a group with unknown parameters", err, csierr.Invalid)
	got, err := b.GetGroup(ctx, g.ID, members)
	if err != nil || got.ID != g.ID || len(got.Snapshots) != 2 {
		s.Errorf("GetGroup returns %+v, %v", got, err)
	}
	_, err = b.GetGroup(ctx, "no-such-group", nil)
	s.wants("get what does not exist", err, csierr.NotFound)
	s.wants("delete what does not exist", b.DeleteGroup(ctx, "no-such-group", nil), nil)
	for range 2 {
		s.wants("delete", b.DeleteGroup(ctx, g.ID, members), nil)
	}
	_, err = b.GetGroup(ctx, g.ID, nil)
	s.wants("get a deleted group", err, csierr.NotFound)
	for _, id := range members {
		_, err = b.GetSnapshot(ctx, id)
		s.wants("get a snapshot of a deleted group", err, csierr.NotFound)
	}
}

func (s *suite) blocks() {
	b, ctx := as[storage.ChangedBlocks](s), s.Context()
	a := s.mustCreate("a")
	var snaps []storage.Snapshot
	for _, name := range []string{"s1", "s2"} {
		snaps = append(snaps, finish(s, func() (storage.Snapshot, error) {
			return b.CreateSnapshot(ctx, storage.SnapshotSpec{Name: name, SourceVolumeID: a.ID})
		}))
	}
	for _, base := range []string{"", snaps[0].ID} {
		for _, from := range []int64{0, s.Size / 2, a.CapacityBytes} {
			end := from
			err := b.Blocks(ctx, base, snaps[1].ID, from, func(at, size int64) error {
				if at < end && at+size <= from || size <= 0 || at+size > a.CapacityBytes {
					s.Errorf("a range at %d of %d bytes, behind %d", at, size, end)
				}
				end = at + size
				return nil
			})
			s.wants("blocks", err, nil)
		}
	}
	err := b.Blocks(ctx, "", "no-such-snapshot", 0, func(int64, int64) error { return nil })
	s.wants("blocks of what does not exist", err, csierr.NotFound)
}

func (s *suite) health() {
	b := as[storage.HealthReporter](s)
	v := s.mustCreate("a")
	problems, err := b.CheckVolume(s.Context(), v.ID)
	if err != nil || len(problems) > 0 {
		s.Errorf("a new volume has %v, %v", problems, err)
	}
	_, err = b.CheckVolume(s.Context(), "no-such-volume")
	s.wants("check what does not exist", err, csierr.NotFound)
}
