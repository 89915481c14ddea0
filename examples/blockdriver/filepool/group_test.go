package filepool

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"google.golang.org/grpc/codes"
)

func wantEmpty(t *testing.T, dir string, dirs ...string) {
	t.Helper()
	for _, pool := range []string{"a1", "a2", "b1"} {
		for _, d := range dirs {
			if left, _ := os.ReadDir(filepath.Join(dir, pool, d)); len(left) > 0 {
				t.Fatalf("%s/%s holds %v", pool, d, left)
			}
		}
	}
}

// groupOf makes volumes in two pools, and what a group of them is asked for.
func groupOf(t *testing.T, m *filePools, name string, volumes ...string) storage.GroupSpec {
	t.Helper()
	s := storage.GroupSpec{Name: name}
	for i, v := range volumes {
		b := m.named([]string{"a1", "b1"}[i%2])
		if !b.vols.has(v) {
			filled(t, b, v)
		}
		s.VolumeIDs = append(s.VolumeIDs, b.volumeID(v))
	}
	slices.Sort(s.VolumeIDs)
	return s
}

func TestGroup(t *testing.T) {
	dir := t.TempDir()
	m := openTestPools(t, dir, nil)
	ctx := t.Context()
	s := groupOf(t, m, "g", "a", "b", "c")
	g, err := m.CreateGroup(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Snapshots) != 3 || !groupIDPattern.MatchString(g.ID) || g.CreatedAt.IsZero() {
		t.Errorf("%+v", g)
	}
	check := func(m *filePools) {
		t.Helper()
		if again, err := m.CreateGroup(ctx, s); err != nil || !reflect.DeepEqual(again, g) {
			t.Errorf("again: %+v, %v", again, err)
		}
		for _, ids := range [][]string{nil, g.snapshotIDs()} {
			if got, err := m.GetGroup(ctx, g.ID, ids); err != nil || !reflect.DeepEqual(got, g) {
				t.Errorf("get: %+v, %v", got, err)
			}
		}
		for _, x := range g.Snapshots {
			if x.GroupID != g.ID {
				t.Errorf("member %+v", x)
			}
			if got, err := m.GetSnapshot(ctx, x.ID); err != nil || !reflect.DeepEqual(got, x) {
				t.Errorf("member %+v, %v", got, err)
			}
			wantCode(t, m.DeleteSnapshot(ctx, x.ID), codes.InvalidArgument, g.ID)
		}
	}
	check(m)
	m.Close()
	m = openTestPools(t, dir, nil)
	check(m)

	_, err = m.CreateGroup(ctx, groupOf(t, m, "g", "a", "b"))
	wantCode(t, err, codes.AlreadyExists)
	_, err = m.CreateGroup(ctx, storage.GroupSpec{Name: "h", VolumeIDs: []string{m.volumeID("a"), volumeID("unknown")}})
	wantCode(t, err, codes.NotFound)
	_, err = m.GetGroup(ctx, groupID("unknown"), nil)
	wantCode(t, err, codes.NotFound)
	_, err = m.GetGroup(ctx, g.ID, g.snapshotIDs()[:2])
	wantCode(t, err, codes.InvalidArgument)
	wantCode(t, m.DeleteGroup(ctx, g.ID, []string{snapshotID("x")}), codes.InvalidArgument)

	// A member is restored, and outlives its group.
	if err := m.DeleteVolume(ctx, g.Members[0].VolumeID); err != nil {
		t.Fatal(err)
	}
	r, err := m.CreateVolume(ctx, from("r", g.Members[0].SnapshotID))
	if err != nil || !r.HoldsData {
		t.Fatalf("%+v, %v", r, err)
	}
	for range 2 {
		if err := m.DeleteGroup(ctx, g.ID, g.snapshotIDs()); err != nil {
			t.Fatal(err)
		}
	}
	wantEmpty(t, dir, "snapshots", "groups")
}

// A process that has only some of the pools keeps the snapshots of groups whose record is
// in another one.
func TestGroupInOtherPool(t *testing.T) {
	dir := t.TempDir()
	m := openTestPools(t, dir, nil)
	g, err := m.CreateGroup(t.Context(), groupOf(t, m, "g", "a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	m.Close()
	for _, pool := range []string{"a1", "b1"} {
		_, err := command(t, "fsck", "-repair", "-pool", filepath.Join(dir, pool))
		if err != nil && !errors.Is(err, storage.ErrReported) {
			t.Fatal(err)
		}
	}
	m = openTestPools(t, dir, nil)
	if got, err := m.GetGroup(t.Context(), g.ID, nil); err != nil || !reflect.DeepEqual(got, g) {
		t.Errorf("%+v, %v", got, err)
	}
}

// Volumes that are attached, to a node that this process cannot ask to freeze them.
func TestGroupOfAttached(t *testing.T) {
	dir := t.TempDir()
	m := openTestPools(t, dir, nil)
	s := groupOf(t, m, "g", "a", "b")
	for _, b := range m.here() {
		b.segments = nil
		b.reflink = true
		mustRegister(t, b.pool, "n")
	}
	for _, id := range s.VolumeIDs {
		b, err := m.volume(t.Context(), "test", id)
		if err != nil {
			t.Fatal(err)
		}
		v, _ := b.vols.get(id)
		v.Attachment = &attachment{Attachment: storage.Attachment{NodeID: "n"}}
		if _, err := b.vols.save(v); err != nil {
			t.Fatal(err)
		}
	}
	_, err := m.CreateGroup(t.Context(), s)
	wantCode(t, err, codes.FailedPrecondition, "detach them")
	m.freezer = noFreezer{}
	_, err = m.CreateGroup(t.Context(), s)
	wantCode(t, err, codes.FailedPrecondition, "elsewhere")
	wantEmpty(t, dir, "snapshots", "groups")
	for _, b := range m.here() {
		b.reflink = false
	}
	_, err = m.CreateGroup(t.Context(), s)
	wantCode(t, err, codes.FailedPrecondition, "xfs or btrfs")
	wantEmpty(t, dir, "snapshots", "groups")
}

type noFreezer struct{}

func (noFreezer) nodeID() string { return "m" }
func (noFreezer) freeze(context.Context, string) (func() error, error) {
	return nil, csierr.Errorf("freeze", "x", "elsewhere: %w", storage.ErrInUse)
}

// TestGroupFaults fails every step in turn, as TestFaults does.
func TestGroupFaults(t *testing.T) {
	ctx := context.Background()
	for _, test := range []struct {
		name   string
		delete bool // the group is there, and is being deleted
		then   string
	}{{"create, retried", false, "create"}, {"create, forgotten", false, ""}, {"delete, retried", true, "delete"}} {
		for _, mode := range []string{"one error", "restart", "kill"} {
			t.Run(test.name+"/"+mode, func(t *testing.T) {
				t.Parallel()
				for n := 1; ; n++ {
					dir := t.TempDir()
					m := openTestPools(t, dir, nil)
					s := groupOf(t, m, "g", "a", "b")
					create := func() error { _, err := m.CreateGroup(ctx, s); return err }
					remove := func() error { return m.DeleteGroup(ctx, m.groupID("g"), nil) }
					op := create
					if test.delete {
						if err := create(); err != nil {
							t.Fatal(err)
						}
						op = remove
					}
					i, hit := 0, false
					for _, b := range m.here() {
						b.step = func(string) error {
							if i++; i == n || i > n && mode == "kill" {
								hit = true
								return syscall.EIO
							}
							return nil
						}
					}
					err := op()
					for _, b := range m.here() {
						b.step = nil
					}
					if !hit {
						if err != nil || n < 8 {
							t.Fatalf("step %d: nothing was injected, error %v", n, err)
						}
						m.Close()
						return
					}
					if err != nil {
						wantCode(t, err, codes.Unavailable)
					}
					if mode != "one error" || test.then == "" {
						m.Close()
						m = openTestPools(t, dir, nil)
					}
					switch test.then {
					case "create":
						if err := create(); err != nil {
							t.Fatalf("step %d: again: %v", n, err)
						}
						g, err := m.GetGroup(ctx, m.groupID("g"), nil)
						if err != nil || len(g.Snapshots) != 2 {
							t.Fatalf("step %d: %+v, %v", n, g, err)
						}
					case "delete":
						if err := remove(); err != nil {
							t.Fatalf("step %d: again: %v", n, err)
						}
					default: // whatever a CO finds, it is a whole group or nothing
						snaps, _, err := m.ListSnapshots(ctx, "", "", 0)
						g, gerr := m.GetGroup(ctx, m.groupID("g"), nil)
						if err != nil || gerr == nil && len(snaps) != len(g.Snapshots) || gerr != nil && len(snaps) != 0 {
							t.Fatalf("step %d: %d snapshots (%v), group %+v, %v", n, len(snaps), err, g, gerr)
						}
					}
					if err := remove(); err != nil {
						t.Fatal(err)
					}
					for _, id := range s.VolumeIDs {
						if err := m.DeleteSnapshot(ctx, m.snapshotID(memberName("g", id))); err != nil {
							t.Fatal(err)
						}
					}
					m.Close()
					m = openTestPools(t, dir, nil)
					wantEmpty(t, dir, "snapshots", "groups")
					m.Close()
				}
			})
		}
	}
}
