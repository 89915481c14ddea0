package filepool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"google.golang.org/grpc/codes"
)

func snap(name, source string) storage.SnapshotSpec {
	return storage.SnapshotSpec{Name: name, SourceVolumeID: source}
}

func mustSnap(t *testing.T, b *fileBackend, name, source string) snapshot {
	t.Helper()
	s, err := b.CreateSnapshot(t.Context(), snap(name, source))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// from is spec(name), made from a snapshot or a volume.
func from(name, source string) storage.VolumeSpec {
	s := spec(name)
	s.Source = &storage.Source{VolumeID: source}
	if snapshotIDPattern.MatchString(source) {
		s.Source = &storage.Source{SnapshotID: source}
	}
	return s
}

func (b *fileBackend) imageOf(id string) string {
	if snapshotIDPattern.MatchString(id) {
		return b.file("snapshots", id+extImage)
	}
	return b.file("volumes", id+extImage)
}

func writeAt(t *testing.T, file, text string, at int64) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte(text), at)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func readAt(t *testing.T, file string, at int64, n int) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := make([]byte, n)
	if _, err := f.ReadAt(data, at); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return string(bytes.TrimRight(data, "\x00"))
}

// filled is a volume of 1 GiB with data in three places.
func filled(t *testing.T, b *fileBackend, name string) volume {
	t.Helper()
	v := mustCreate(t, b, spec(name))
	for _, at := range []int64{0, 300 * mib, gib - 4} {
		writeAt(t, b.imageOf(v.ID), name[:1]+"…", at)
	}
	return v
}

func wantFilled(t *testing.T, b *fileBackend, id, name string, size int64) {
	t.Helper()
	file := b.imageOf(id)
	for _, at := range []int64{0, 300 * mib, gib - 4} {
		if got := readAt(t, file, at, 16); got != name[:1]+"…" {
			t.Errorf("%s at %d: %q", file, at, got)
		}
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() != size {
		t.Errorf("%s has %d bytes, want %d (%v)", file, info.Size(), size, err)
	}
	if n, err := allocated(f); err != nil || n > mib {
		t.Errorf("%s takes %d bytes (%v): the holes are gone", file, n, err)
	}
}

func TestSnapshot(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	v := filled(t, b, "a")
	s := mustSnap(t, b, "s", v.ID)
	if !snapshotIDPattern.MatchString(s.ID) || s.SourceVolumeID != v.ID || s.SizeBytes != gib || s.AccessType != "ext4" || !s.HoldsData || s.CreatedAt.IsZero() {
		t.Errorf("%+v", s)
	}
	writeAt(t, b.imageOf(v.ID), "later", 0)
	for range 2 {
		if again := mustSnap(t, b, "s", v.ID); !reflect.DeepEqual(again, s) {
			t.Errorf("again: %+v, first: %+v", again, s)
		}
		wantFilled(t, b, s.ID, "a", gib)
		b = reopen(t, b)
	}
	other := mustCreate(t, b, spec("b"))
	_, err := b.CreateSnapshot(t.Context(), snap("s", other.ID))
	wantCode(t, err, codes.AlreadyExists, "source volume", v.ID, other.ID)
	_, err = b.CreateSnapshot(t.Context(), snap("x", volumeID("unknown")))
	wantCode(t, err, codes.NotFound, "source volume")

	// The volume goes, the snapshot stays; the snapshot goes, what was made of it stays.
	if err := b.DeleteVolume(t.Context(), v.ID); err != nil {
		t.Fatal(err)
	}
	restored := mustCreate(t, b, from("r", s.ID))
	for range 2 {
		if err := b.DeleteSnapshot(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
	}
	_, err = b.GetSnapshot(t.Context(), s.ID)
	wantCode(t, err, codes.NotFound)
	b = reopen(t, b)
	wantFilled(t, b, restored.ID, "a", gib)
	if left, _ := os.ReadDir(filepath.Join(b.dir, "snapshots")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	_, err = b.CreateVolume(t.Context(), from("r2", s.ID))
	wantCode(t, err, codes.NotFound, "source snapshot")
	if again := mustCreate(t, b, from("r", s.ID)); !reflect.DeepEqual(again, restored) {
		t.Errorf("a retry when the source has gone: %+v", again)
	}
}

func TestClone(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	v := filled(t, b, "a")
	blank := mustCreate(t, b, spec("blank"))
	for _, test := range []struct {
		name   string
		change func(*storage.VolumeSpec)
		size   int64
		code   codes.Code
		text   string
	}{
		{"same size", func(*storage.VolumeSpec) {}, gib, codes.OK, ""},
		{"any size", func(s *storage.VolumeSpec) { s.Capacity = storage.CapacityRange{} }, gib, codes.OK, ""},
		{"larger", func(s *storage.VolumeSpec) { s.Capacity.Required = gib + 1 }, gib + mib, codes.OK, ""},
		{"limit", func(s *storage.VolumeSpec) { s.Capacity = storage.CapacityRange{Limit: 3 * gib} }, gib, codes.OK, ""},
		{"less is enough", func(s *storage.VolumeSpec) { s.Capacity = storage.CapacityRange{Required: mib} }, gib, codes.OK, ""},
		{"smaller", func(s *storage.VolumeSpec) { s.Capacity = storage.CapacityRange{Limit: gib - 1} }, 0, codes.OutOfRange, "the source has"},
		{"raw", func(s *storage.VolumeSpec) { s.AccessType = storage.AccessBlock }, gib, codes.OK, ""},
		{"another file system", func(s *storage.VolumeSpec) { s.AccessType = "xfs" }, 0, codes.InvalidArgument, "holds ext4"},
		{"too large", func(s *storage.VolumeSpec) { s.Capacity.Required = 2 << 40 }, 0, codes.OutOfRange, "whole pool"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := from(test.name, v.ID)
			test.change(&s)
			before := files(t, b.dir)
			c, err := b.CreateVolume(t.Context(), s)
			wantCode(t, err, test.code, test.text)
			if err != nil {
				if after := files(t, b.dir); !slices.Equal(before, after) {
					t.Errorf("left behind: %v, before: %v", after, before)
				}
				return
			}
			if !c.HoldsData || *c.Source != *s.Source || c.CapacityBytes != test.size {
				t.Errorf("%+v", c)
			}
			wantFilled(t, b, c.ID, "a", test.size)
			if again := mustCreate(t, b, s); !reflect.DeepEqual(again, c) {
				t.Errorf("again: %+v, first %+v", again, c)
			}
			s.Source = &storage.Source{VolumeID: blank.ID}
			_, err = b.CreateVolume(t.Context(), s)
			wantCode(t, err, codes.AlreadyExists, `source: it has "volume `+v.ID)
			s.Source = nil
			_, err = b.CreateVolume(t.Context(), s)
			wantCode(t, err, codes.AlreadyExists, `the request wants "nothing"`)
		})
	}
	if c := mustCreate(t, b, from("of blank", blank.ID)); c.HoldsData {
		t.Error("a clone of a volume that was never written to is one that may be formatted")
	}
}

// A pool without atomic clones copies no volume to which a node may write, and attaches
// no volume that it copies.
func TestNoTornCopy(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	b.reflink = false
	mustRegister(t, b.pool, "n")
	v := filled(t, b, "a")
	ctx := t.Context()
	attach := func() error { _, err := b.AttachVolume(ctx, v.ID, storage.Attachment{NodeID: "n"}); return err }
	if err := attach(); err != nil {
		t.Fatal(err)
	}
	_, err := b.CreateSnapshot(ctx, snap("s", v.ID))
	wantCode(t, err, codes.FailedPrecondition, `"n"`, "detach it first")
	_, err = b.CreateVolume(ctx, from("c", v.ID))
	wantCode(t, err, codes.FailedPrecondition, `"n"`)
	wantFiles(t, b.dir, v.ID)
	if err := b.DetachVolume(ctx, v.ID, "n"); err != nil {
		t.Fatal(err)
	}

	copying, goOn := make(chan bool), make(chan bool)
	b.step = func(name string) error {
		if name == "copy" {
			copying <- true
			<-goOn
		}
		return nil
	}
	done := make(chan error)
	go func() { _, err := b.CreateSnapshot(ctx, snap("s", v.ID)); done <- err }()
	<-copying
	wantCode(t, attach(), codes.Aborted, "being copied")
	wantCode(t, b.DeleteVolume(ctx, v.ID), codes.Aborted, "being copied")
	// A caller whose context ends gets DEADLINE_EXCEEDED, and the work continues.
	short, cancel := context.WithCancel(ctx)
	cancelled := make(chan error)
	go func() { _, err := b.CreateSnapshot(short, snap("s", v.ID)); cancelled <- err }()
	for b.work.Snapshot()[0].Waiters < 2 {
	}
	cancel()
	err = <-cancelled
	wantCode(t, err, codes.DeadlineExceeded)
	if p := (interface{ Pending() <-chan struct{} })(nil); !errors.As(err, &p) {
		t.Error("the lock on the name would not be kept")
	}
	b.step = nil
	close(goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	wantFilled(t, b, b.snapshotID("s"), "a", gib)
	if err := attach(); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// What was copied before a kill is not copied again, unless a node may have
// written to the source since.
func TestCopyGoesOn(t *testing.T) {
	for name, test := range map[string]struct {
		between func(t *testing.T, b *fileBackend, id string)
		resumed bool
	}{
		"killed": {func(*testing.T, *fileBackend, string) {}, true},
		"attached meanwhile": {func(t *testing.T, b *fileBackend, id string) {
			if _, err := b.AttachVolume(t.Context(), id, storage.Attachment{NodeID: "n"}); err != nil {
				t.Fatal(err)
			}
			if err := b.DetachVolume(t.Context(), id, "n"); err != nil {
				t.Fatal(err)
			}
		}, false},
		"created again": {func(t *testing.T, b *fileBackend, id string) {
			if err := b.DeleteVolume(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			filled(t, b, "a")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := openBackend(t, t.TempDir(), nil)
			b.reflink = false
			mustRegister(t, b.pool, "n")
			v := filled(t, b, "a")
			pieces := 0
			b.step = func(name string) error {
				if name == "copy" {
					if pieces++; pieces == 3 {
						return syscall.EIO
					}
				}
				return nil
			}
			_, err := b.CreateSnapshot(t.Context(), snap("s", v.ID))
			wantCode(t, err, codes.Unavailable)
			b = reopen(t, b)
			b.reflink = false
			if !b.snaps.has("s") {
				t.Error("the part of a copy is forgotten")
			}
			_, err = b.GetSnapshot(t.Context(), b.snapshotID("s"))
			wantCode(t, err, codes.NotFound) // not before its point in time
			test.between(t, b, v.ID)
			pieces = 0
			b.step = func(name string) error {
				if name == "copy" {
					pieces++
				}
				return nil
			}
			s := mustSnap(t, b, "s", b.volumeID("a"))
			if resumed := pieces == 1; resumed != test.resumed {
				t.Errorf("%d of 3 pieces were copied", pieces)
			}
			wantFilled(t, b, s.ID, "a", gib)
		})
	}
}

// The name of a snapshot says nothing about what is in it.
func TestCopyOfSnapshotMadeAnew(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	b.reflink = false
	v := filled(t, b, "a")
	s := mustSnap(t, b, "s", v.ID)
	pieces := 0
	b.step = func(name string) error {
		if name == "copy" {
			if pieces++; pieces == 3 {
				return syscall.EIO
			}
		}
		return nil
	}
	_, err := b.CreateVolume(t.Context(), from("c", s.ID))
	wantCode(t, err, codes.Unavailable)
	b.step = nil
	if err := b.DeleteSnapshot(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{0, 300 * mib, gib - 4} {
		writeAt(t, b.imageOf(v.ID), "b…", at)
	}
	s = mustSnap(t, b, "s", v.ID)
	wantFilled(t, b, mustCreate(t, b, from("c", s.ID)).ID, "b", gib)
}

// A copy whose removal was interrupted has lost its image, and says still how far it got.
func TestCopyOfWhichTheMarkIsLeft(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	b.reflink = false
	v := filled(t, b, "a")
	pieces, removals := 0, 0
	b.step = func(name string) error {
		switch name {
		case "copy":
			if pieces++; pieces == 3 {
				return syscall.ENOSPC
			}
		case "remove":
			if removals++; removals == 2 {
				return syscall.EIO
			}
		}
		return nil
	}
	_, err := b.CreateVolume(t.Context(), from("c", v.ID))
	wantCode(t, err, codes.Unavailable) // something is left
	b.step = nil
	wantFilled(t, b, mustCreate(t, b, from("c", v.ID)).ID, "a", gib)
}

// Copies stop with the driver, and the next one resumes them.
func TestCloseStopsCopies(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	b.reflink = false
	v := filled(t, b, "a")
	copying := make(chan bool, 10)
	b.step = func(name string) error {
		if name == "copy" {
			copying <- true
			<-b.life.Done()
		}
		return nil
	}
	done := make(chan error)
	go func() { _, err := b.CreateSnapshot(t.Context(), snap("s", v.ID)); done <- err }()
	<-copying
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, <-done, codes.Canceled, "the driver stops")
	b.step = nil
	_, err := b.CreateSnapshot(t.Context(), snap("s", v.ID))
	wantCode(t, err, codes.Aborted, "the driver stops")
	b = reopen(t, b)
	wantFilled(t, b, mustSnap(t, b, "s", v.ID).ID, "a", gib)
}

// A full pool is left as it was.
// Each of several copies fits into the pool, and all together do not: they do not
// use the reserve.
func TestCopiesLeaveTheReserve(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	b.reflink, b.limits.reserve = false, 50
	v := mustCreate(t, b, spec("a"))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	f, err := b.volumes.OpenFile(v.ID+extImage, os.O_WRONLY, 0)
	must(err)
	_, err = f.Write(bytes.Repeat([]byte("data"), 4*copyPiece/4))
	must(errors.Join(err, f.Close()))
	pieces := 0
	b.step = func(name string) error {
		if name == "copy" {
			pieces++
		}
		return nil
	}
	b.space = func() (int64, int64, error) { // another copy writes as much
		return 2 * gib, gib + 5*copyPiece - int64(2*pieces)*copyPiece, nil
	}
	_, err = b.CreateSnapshot(t.Context(), snap("s", v.ID))
	wantCode(t, err, codes.ResourceExhausted, "its reserve")
	if pieces != 3 {
		t.Errorf("%d pieces were copied", pieces)
	}
}

func TestCopyIntoFullPool(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	b.reflink = false
	v := filled(t, b, "a")
	b.space = func() (int64, int64, error) { return 10 * gib, 4096, nil }
	_, err := b.CreateSnapshot(t.Context(), snap("s", v.ID))
	wantCode(t, err, codes.ResourceExhausted)
	b.space = func() (int64, int64, error) { return 10 * gib, 9 * gib, nil }
	b.step = func(name string) error {
		if name == "copy" {
			return syscall.ENOSPC
		}
		return nil
	}
	_, err = b.CreateSnapshot(t.Context(), snap("s", v.ID))
	wantCode(t, err, codes.ResourceExhausted)
	_, err = b.CreateVolume(t.Context(), from("c", v.ID))
	wantCode(t, err, codes.ResourceExhausted)
	// The image fits, its metadata do not: three marks are written before them.
	writes, fails := 0, "write temp"
	b.step = func(name string) error {
		if name == "write temp" {
			writes++
		}
		if writes == 4 && name == fails {
			return syscall.ENOSPC
		}
		return nil
	}
	_, err = b.CreateSnapshot(t.Context(), snap("s", v.ID))
	wantCode(t, err, codes.ResourceExhausted)
	writes = 0
	_, err = b.CreateVolume(t.Context(), from("c", v.ID))
	wantCode(t, err, codes.ResourceExhausted)
	wantFiles(t, b.dir, v.ID)
	if left, _ := os.ReadDir(filepath.Join(b.dir, "snapshots")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	// They are there, and may not stay.
	writes, fails = 0, "sync dir"
	_, err = b.CreateVolume(t.Context(), from("c", v.ID))
	wantCode(t, err, codes.Unavailable)
}

func TestListSnapshots(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	x, y := mustCreate(t, b, spec("x")), mustCreate(t, b, spec("y"))
	for i := range 10 {
		mustSnap(t, b, fmt.Sprint("x", i), x.ID)
		mustSnap(t, b, fmt.Sprint("y", i), y.ID)
	}
	for _, source := range []string{"", x.ID} {
		seen := map[string]bool{}
		for token := ""; ; {
			page, next, err := b.ListSnapshots(t.Context(), source, token, 3)
			if err != nil || len(page) > 3 {
				t.Fatalf("%d snapshots, %v", len(page), err)
			}
			for _, s := range page {
				if seen[s.ID] || source != "" && s.SourceVolumeID != source {
					t.Errorf("%+v", s)
				}
				seen[s.ID] = true
			}
			if err := b.DeleteSnapshot(t.Context(), page[len(page)-1].ID); err != nil {
				t.Fatal(err)
			}
			if token = next; token == "" {
				break
			}
		}
		if want := map[string]int{"": 20, x.ID: 10}[source]; source == "" && len(seen) != want {
			t.Errorf("%d snapshots of %q, want %d", len(seen), source, want)
		}
	}
	_, _, err := b.ListSnapshots(t.Context(), "", "7", 3)
	wantCode(t, err, codes.Aborted)
}

// TestSnapshotFaults fails every step of making and removing copies, as TestFaults
// does.
func TestSnapshotFaults(t *testing.T) {
	ctx := context.Background()
	type op = func(*fileBackend) error
	makeSnap := func(b *fileBackend) error { _, err := b.CreateSnapshot(ctx, snap("s", b.volumeID("a"))); return err }
	makeClone := func(b *fileBackend) error { _, err := b.CreateVolume(ctx, from("c", b.volumeID("a"))); return err }
	restore := func(b *fileBackend) error { _, err := b.CreateVolume(ctx, from("c", b.snapshotID("s"))); return err }
	dropSnap := func(b *fileBackend) error { return b.DeleteSnapshot(ctx, b.snapshotID("s")) }
	dropClone := func(b *fileBackend) error { return b.DeleteVolume(ctx, b.volumeID("c")) }
	for _, test := range []struct {
		name        string
		before      []op
		op, then    op
		snap, clone bool // are there at the end
	}{
		{"snapshot, retried", nil, makeSnap, makeSnap, true, false},
		{"snapshot, deleted", nil, makeSnap, dropSnap, false, false},
		{"delete snapshot, retried", []op{makeSnap}, dropSnap, dropSnap, false, false},
		{"delete snapshot, made again", []op{makeSnap}, dropSnap, makeSnap, true, false},
		{"clone, retried", nil, makeClone, makeClone, false, true},
		{"clone, deleted", nil, makeClone, dropClone, false, false},
		{"restore, retried", []op{makeSnap}, restore, restore, true, true},
		{"restore, deleted", []op{makeSnap}, restore, dropClone, true, false},
		{"restore, made empty", []op{makeSnap}, restore, func(b *fileBackend) error {
			_, err := b.CreateVolume(ctx, spec("c"))
			if errors.Is(err, csierr.Conflict) { // it was there after all
				err = errors.Join(dropClone(b), func() error { _, err := b.CreateVolume(ctx, spec("c")); return err }())
			}
			return errors.Join(err, dropClone(b))
		}, true, false},
	} {
		for _, mode := range []string{"one error", "restart", "kill"} {
			t.Run(test.name+"/"+mode, func(t *testing.T) {
				t.Parallel()
				for n := 1; ; n++ {
					b := openBackend(t, t.TempDir(), nil)
					filled(t, b, "a")
					for _, op := range test.before {
						if err := op(b); err != nil {
							t.Fatal(err)
						}
					}
					i, hit := 0, false
					b.step = func(string) error {
						if i++; i == n || i > n && mode == "kill" {
							hit = true
							return syscall.EIO
						}
						return nil
					}
					err := test.op(b)
					b.step = nil
					if !hit {
						if err != nil || n < 4 {
							t.Fatalf("step %d: nothing was injected, error %v", n, err)
						}
						closeBackend(t, b)
						return
					}
					if err != nil { // or only the mark stayed
						wantCode(t, err, codes.Unavailable)
					}
					if mode != "one error" {
						b = reopen(t, b)
					}
					for range 2 {
						if err := test.then(b); err != nil {
							t.Fatalf("step %d: then: %v", n, err)
						}
						b = reopen(t, b)
					}
					vol := b.volumeID("a")
					want := []string{vol}
					if test.clone {
						want = append(want, b.volumeID("c"))
						wantFilled(t, b, b.volumeID("c"), "a", gib)
					}
					wantFiles(t, b.dir, want...)
					left, _ := os.ReadDir(filepath.Join(b.dir, "snapshots"))
					if test.snap {
						wantFilled(t, b, b.snapshotID("s"), "a", gib)
					}
					if want := map[bool]int{true: 2}[test.snap]; len(left) != want {
						t.Fatalf("step %d: snapshots holds %v", n, left)
					}
					wantFilled(t, b, vol, "a", gib)
					closeBackend(t, b)
				}
			})
		}
	}
}

// A call that is cancelled while its copy is in progress reports that it is still in flight:
// with any other code the CO would take it as ended.
func TestCancelledCopyIsPending(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	b.reflink = false
	source := filled(t, b, "a")
	copying, goOn := make(chan bool), make(chan bool)
	b.step = func(name string) error {
		if name == "copy" && copying != nil {
			close(copying)
			copying = nil
			<-goOn
		}
		return nil
	}
	began := copying
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { _, err := b.CreateSnapshot(ctx, snap("s", source.ID)); done <- err }()
	<-began
	cancel()
	err := <-done
	wantCode(t, err, codes.DeadlineExceeded)
	wantCode(t, csierr.Errorf("create snapshot", "s", "%w", err), codes.DeadlineExceeded)
	var pending *blocking.PendingError
	if !errors.As(err, &pending) {
		t.Fatalf("not pending: %v", err)
	}
	close(goOn)
	<-pending.Pending()
	wantFilled(t, b, mustSnap(t, b, "s", source.ID).ID, "a", gib)
}
