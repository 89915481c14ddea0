package filepool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/volumelock"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const gib = 1 << 30

// needLinux: elsewhere the pool has neither lock nor statfs, by design.
func needLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the pool works on Linux only")
	}
}

// makePool is what an administrator has done once.
func makePool(t *testing.T, dir string) {
	t.Helper()
	p, err := initPool(dir)
	if err == nil {
		err = p.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// openBackend opens the pool in dir, as a controller would at its start, with a
// terabyte of room.
func openBackend(t *testing.T, dir string, log *slog.Logger) *fileBackend {
	t.Helper()
	needLinux(t)
	p, err := initPool(dir)
	if err != nil {
		t.Fatal(err)
	}
	p.space = func() (int64, int64, error) { return 1 << 40, 1 << 40, nil }
	b, err := newFileBackend(p, log)
	if err != nil {
		p.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() { closeBackend(t, b) })
	return b
}

// A controller that is killed while it tries whether the pool shares blocks leaves files
// to the next one, which removes them.
func TestFilesOfAKilledStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pool")
	closeBackend(t, openBackend(t, dir, nil))
	for i := range 2 {
		write(t, fmt.Sprintf("%s/%s.try-%d%s", dir, markerName, i, extTemp), "")
	}
	openBackend(t, dir, nil)
	if left, _ := filepath.Glob(dir + "/.*" + extTemp); len(left) > 0 { // the pattern is good
		t.Errorf("left: %v", left)
	}
}

func closeBackend(t *testing.T, b *fileBackend) {
	t.Helper()
	for _, err := range []error{b.Close(), b.pool.Close()} {
		if err != nil && !errors.Is(err, fs.ErrClosed) {
			t.Error(err)
		}
	}
}

// reopen is a restart of the controller.
func reopen(t *testing.T, b *fileBackend) *fileBackend {
	t.Helper()
	closeBackend(t, b)
	return openBackend(t, b.dir, nil)
}

func spec(name string) storage.VolumeSpec {
	return storage.VolumeSpec{Name: name, Capacity: storage.CapacityRange{Required: gib}, AccessType: "ext4"}
}

func mustCreate(t *testing.T, b *fileBackend, s storage.VolumeSpec) volume {
	t.Helper()
	v, err := b.CreateVolume(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func mustRegister(t *testing.T, p *pool, nodes ...string) {
	t.Helper()
	for _, n := range nodes {
		if err := p.RegisterNode(n, 0, nil); err != nil {
			t.Fatal(err)
		}
	}
}

func wantCode(t *testing.T, err error, code codes.Code, texts ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Fatalf("got %v (%v), want code %v", err, status.Code(err), code)
	}
	for _, text := range texts {
		if err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
}

// files lists the pool's volumes directory.
func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// wantFiles checks that the pool holds these volumes and not one file more.
func wantFiles(t *testing.T, dir string, ids ...string) {
	t.Helper()
	want := []string{}
	for _, id := range ids {
		want = append(want, id+extImage, id+extMetadata)
	}
	slices.Sort(want)
	if got := files(t, dir); !slices.Equal(got, want) {
		t.Fatalf("files %q, want %q", got, want)
	}
}

func list(t *testing.T, b *fileBackend) []volume {
	t.Helper()
	page, next, err := b.ListVolumes(t.Context(), "", 0)
	if err != nil || next != "" {
		t.Fatalf("next %q, error %v", next, err)
	}
	return page
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOpenPool(t *testing.T) {
	tests := []struct {
		name    string
		prepare func(t *testing.T, dir string)
		wantErr string
	}{
		{"missing", func(*testing.T, string) {}, "blockdriver init -pool"},
		{"unmounted", func(t *testing.T, dir string) { os.Mkdir(dir, 0o700) }, "blockdriver init -pool"},
		{"fresh file system", func(t *testing.T, dir string) { os.MkdirAll(dir+"/lost+found", 0o700) }, "blockdriver init -pool"},
		{"killed while the marker was written", func(t *testing.T, dir string) {
			os.Mkdir(dir, 0o700)
			write(t, dir+"/.csikit-pool.XYZ.tmp", `{"for`)
		}, "blockdriver init -pool"},
		{"killed after the marker was made", func(t *testing.T, dir string) {
			os.Mkdir(dir, 0o700)
			write(t, dir+"/.csikit-pool", `{"format":"csikit-pool","version":1}`)
		}, ""},
		{"a foreign directory", func(t *testing.T, dir string) {
			os.Mkdir(dir, 0o700)
			write(t, dir+"/thesis.txt", "")
		}, `is not empty (it holds "thesis.txt")`},
		{"marker of something else", func(t *testing.T, dir string) {
			os.Mkdir(dir, 0o700)
			write(t, dir+"/.csikit-pool", "{}")
		}, "not a pool marker"},
		{"newer pool", func(t *testing.T, dir string) {
			os.Mkdir(dir, 0o700)
			write(t, dir+"/.csikit-pool", `{"format":"csikit-pool","version":2}`)
		}, "format version 2"},
		{"a file", func(t *testing.T, dir string) { write(t, dir, "") }, "not a directory"},
		{"volumes are gone", func(t *testing.T, dir string) {
			makePool(t, dir)
			os.Remove(dir + "/volumes")
		}, "the directory volumes is missing"},
		{"snapshots are gone", func(t *testing.T, dir string) {
			makePool(t, dir)
			os.Remove(dir + "/snapshots")
		}, "the directory snapshots is missing"},
		{"of an earlier version", func(t *testing.T, dir string) {
			makePool(t, dir)
			os.Remove(dir + "/snapshots")
			os.Remove(dir + "/groups")
		}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "pool")
			test.prepare(t, dir)
			before, _ := os.ReadDir(dir)
			p, err := openPool(dir)
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Fatalf("error %v, want %q", err, test.wantErr)
				}
				if after, _ := os.ReadDir(dir); len(after) != len(before) {
					t.Errorf("refused, and yet something was made in it: %v", after)
				}
				if _, err := os.Stat(dir); test.name == "missing" && err == nil {
					t.Error("refused, and yet it was made")
				}
				if !strings.Contains(test.wantErr, "init") {
					return
				}
				if p, err = initPool(dir); err != nil {
					t.Fatal(err)
				}
				p.Close()
				p, err = openPool(dir)
			}
			if err != nil {
				t.Fatal(err)
			}
			p.Close()
			if p, err = openPool(dir); err != nil {
				t.Fatalf("open again: %v", err)
			}
			p.Close()
		})
	}
}

// Several pods may find the empty directory concurrently.
func TestInitPoolConcurrently(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pool")
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			p, err := initPool(dir)
			if err != nil {
				t.Error(err)
				return
			}
			p.Close()
		})
	}
	wg.Wait()
	entries, _ := os.ReadDir(dir)
	if len(entries) != 5 {
		t.Errorf("pool holds %v, want marker, groups, nodes, snapshots and volumes", entries)
	}
}

func TestControllerLock(t *testing.T) {
	dir := t.TempDir()
	b := openBackend(t, dir, nil)
	other, err := openPool(dir)
	if err != nil {
		t.Fatalf("a node plugin takes no lock: %v", err)
	}
	defer other.Close()
	_, err = newFileBackend(other, nil)
	if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "another controller owns the pool") {
		t.Fatalf("error %v, want one that names the pool", err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := newFileBackend(other, nil)
	if err != nil {
		t.Fatalf("after the first one closed: %v", err)
	}
	again.Close()
}

func TestRegisterNode(t *testing.T) {
	dir := t.TempDir()
	p, err := initPool(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, id := range []string{"", ".", "..", ".hidden", "a/b", "../x", "a\x00b", "ä", strings.Repeat("n", 201)} {
		if err := p.RegisterNode(id, 0, nil); err == nil {
			t.Errorf("node %q was accepted", id)
		}
		if _, err := p.readNode(id); !errors.Is(err, csierr.NotFound) {
			t.Errorf("node %q: %v, want csierr.NotFound", id, err)
		}
	}
	for _, id := range []string{"n", "node-1.example.com", "N_1", strings.Repeat("n", 200)} {
		write(t, filepath.Join(dir, "nodes", id+".json.tmp"), "{") // killed before
		for range 2 {
			if err := p.RegisterNode(id, 3, nil); err != nil {
				t.Errorf("node %q: %v", id, err)
			}
		}
		if r, err := p.readNode(id); r.MaxVolumes != 3 || err != nil {
			t.Errorf("node %q: %+v, error %v", id, r, err)
		}
	}
	if entries, _ := os.ReadDir(dir + "/nodes"); len(entries) != 4 {
		t.Errorf("nodes: %v", entries)
	}
}

func TestChooseSize(t *testing.T) {
	tests := []struct {
		name            string
		required, limit int64
		accessType      string
		want            int64 // 0: OUT_OF_RANGE
	}{
		{"default", 0, 0, "ext4", gib},
		{"limit below the default", 0, 100*mib + 5, "ext4", 100 * mib},
		{"limit above the default", 0, 5 * gib, "ext4", gib},
		{"whole MiB", 64 * mib, 0, "ext4", 64 * mib},
		{"rounded up", 64*mib + 1, 0, "ext4", 65 * mib},
		{"rounded up to the limit", 64*mib + 1, 65 * mib, "ext4", 65 * mib},
		{"rounded beyond the limit", 64*mib + 1, 65*mib - 1, "ext4", 0},
		{"exact", 64 * mib, 64 * mib, "ext4", 64 * mib},
		{"exact but not whole", 64*mib + 1, 64*mib + 1, "ext4", 0},
		{"least ext4", 16 * mib, 0, "ext4", 16 * mib},
		{"below the minimum of ext4", 15 * mib, 0, "ext4", 16 * mib},
		{"least xfs", 300 * mib, 0, "xfs", 300 * mib},
		{"below the minimum of xfs", 299 * mib, 0, "xfs", 300 * mib},
		{"limit below the minimum of xfs", 0, 299 * mib, "xfs", 0},
		{"least block", 1, 0, storage.AccessBlock, mib},
		{"limit below one MiB", 0, mib - 1, storage.AccessBlock, 0},
		{"largest", math.MaxInt64 - mib + 1, 0, storage.AccessBlock, math.MaxInt64 - mib + 1},
		{"overflow", math.MaxInt64 - mib + 2, 0, storage.AccessBlock, 0},
		{"overflow with limit", math.MaxInt64, math.MaxInt64, storage.AccessBlock, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := (storage.VolumeSpec{Capacity: storage.CapacityRange{Required: test.required, Limit: test.limit}, AccessType: test.accessType}).Size(defaultCapacity, mib, 0)
			if got != test.want || (test.want == 0) != errors.Is(err, csierr.OutOfRange) {
				t.Errorf("got %d, %v; want %d", got, err, test.want)
			}
		})
	}
}

func TestChooseGrownSize(t *testing.T) {
	tests := []struct {
		name            string
		required, limit int64
		want            int64 // of a volume of 1 GiB; 0: OUT_OF_RANGE
	}{
		{"smaller", mib, 0, gib},
		{"same", gib, gib, gib},
		{"only a limit", 0, gib, gib},
		{"beyond the limit already", 0, gib - 1, 0},
		{"larger", 2 * gib, 0, 2 * gib},
		{"rounded", gib + 1, 0, gib + mib},
		{"rounded beyond the limit", gib + 1, gib + 2, 0},
		{"overflow", math.MaxInt64, 0, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := (storage.Volume{CapacityBytes: gib}).GrownSize(storage.CapacityRange{Required: test.required, Limit: test.limit}, mib)
			if got != test.want || (test.want == 0) != errors.Is(err, csierr.OutOfRange) {
				t.Errorf("got %d, %v; want %d", got, err, test.want)
			}
		})
	}
}

func TestRoom(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	b.space = func() (int64, int64, error) { return 10 * gib, 4 * gib, nil }
	ctx := t.Context()

	s := spec("a")
	s.Capacity.Required = 11 * gib
	_, err := b.CreateVolume(ctx, s)
	wantCode(t, err, codes.OutOfRange, "whole pool")
	s.Capacity.Required = 5 * gib
	_, err = b.CreateVolume(ctx, s)
	wantCode(t, err, codes.ResourceExhausted, "free")
	wantFiles(t, b.dir)
	s.Capacity.Required = 4 * gib
	v := mustCreate(t, b, s)

	_, err = b.ExpandVolume(ctx, v.ID, storage.CapacityRange{Required: 11 * gib})
	wantCode(t, err, codes.OutOfRange)
	_, err = b.ExpandVolume(ctx, v.ID, storage.CapacityRange{Required: 9 * gib})
	wantCode(t, err, codes.ResourceExhausted)
	if v, err = b.ExpandVolume(ctx, v.ID, storage.CapacityRange{Required: 8 * gib}); err != nil || v.CapacityBytes != 8*gib {
		t.Fatalf("%+v, %v", v, err)
	}
	// What is there already needs no room.
	b.space = func() (int64, int64, error) { return 10 * gib, 0, nil }
	if _, err := b.CreateVolume(ctx, s); err != nil {
		t.Error(err)
	}
	if _, err := b.ExpandVolume(ctx, v.ID, storage.CapacityRange{Required: 8 * gib}); err != nil {
		t.Error(err)
	}

	total, free, err := b.statfs()
	if err != nil || total <= 0 || free < 0 || free > total {
		t.Errorf("statfs: total %d, free %d, error %v", total, free, err)
	}
}

func TestCreateVolume(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	s := storage.VolumeSpec{
		Name:       "pvc-1/../\n\x00",
		Capacity:   storage.CapacityRange{Required: gib, Limit: 2 * gib},
		AccessType: "xfs",
		Parameters: map[string]string{"tier": "gold"},
	}
	v := mustCreate(t, b, s)
	if !volumeIDPattern.MatchString(v.ID) || v.CapacityBytes != gib || v.AccessType != "xfs" || v.Attachment != nil {
		t.Errorf("created %+v", v)
	}
	wantFiles(t, b.dir, v.ID)
	info, err := os.Stat(b.image(v.ID))
	if err != nil || info.Size() != gib {
		t.Fatalf("image: %v, %v", info, err)
	}
	wantNoData(t, b, v.ID)

	same := []storage.CapacityRange{s.Capacity, {}, {Required: 1}, {Limit: gib}, {Required: gib, Limit: gib}}
	for range 2 {
		for _, r := range same {
			again := s
			again.Capacity = r
			if got := mustCreate(t, b, again); !reflect.DeepEqual(got, v) {
				t.Errorf("range %v: got %+v, want %+v", r, got, v)
			}
		}
		b = reopen(t, b)
	}

	different := []struct {
		name   string
		change func(*storage.VolumeSpec)
		texts  []string
	}{
		{"larger", func(s *storage.VolumeSpec) { s.Capacity.Required = gib + 1 }, []string{"capacity: it has 1073741824 bytes, the request wants 1073741825 to 2147483648 bytes"}},
		{"smaller", func(s *storage.VolumeSpec) { s.Capacity = storage.CapacityRange{Limit: gib - 1} }, []string{"capacity"}},
		{"file system", func(s *storage.VolumeSpec) { s.AccessType = "ext4" }, []string{"access type: it has \"xfs\", the request wants \"ext4\""}},
		{"block", func(s *storage.VolumeSpec) { s.AccessType = storage.AccessBlock }, []string{`the request wants "block"`}},
		{"parameter value", func(s *storage.VolumeSpec) { s.Parameters = map[string]string{"tier": "tin"} }, []string{`parameters["tier"]: it has "gold", the request wants "tin"`}},
		{"parameter missing", func(s *storage.VolumeSpec) { s.Parameters = nil }, []string{`parameters["tier"]`}},
		{"empty parameter", func(s *storage.VolumeSpec) { s.Parameters = map[string]string{"tier": "gold", "x": ""} }, []string{`parameters["x"]`}},
		{"everything", func(s *storage.VolumeSpec) {
			*s = storage.VolumeSpec{Name: s.Name, Capacity: storage.CapacityRange{Required: 3 * gib}, AccessType: "ext4", Parameters: map[string]string{"b": "1"}}
		}, []string{"capacity", "access type", `parameters["b"]`, `parameters["tier"]`, v.ID}},
	}
	for _, test := range different {
		t.Run(test.name, func(t *testing.T) {
			other := s
			test.change(&other)
			_, err := b.CreateVolume(t.Context(), other)
			wantCode(t, err, codes.AlreadyExists, test.texts...)
		})
	}
	wantFiles(t, b.dir, v.ID)
}

func TestDeleteVolume(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	mustRegister(t, b.pool, "n1")
	keep := mustCreate(t, b, spec("keep"))
	v := mustCreate(t, b, spec("a"))
	if _, err := b.AttachVolume(t.Context(), v.ID, storage.Attachment{NodeID: "n1"}); err != nil {
		t.Fatal(err)
	}
	err := b.DeleteVolume(t.Context(), v.ID)
	wantCode(t, err, codes.FailedPrecondition, `"n1"`)
	wantFiles(t, b.dir, keep.ID, v.ID)
	if err := errors.Join(b.DetachVolume(t.Context(), v.ID, "n1"), writeData(b, v.ID)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := b.DeleteVolume(t.Context(), v.ID); err != nil {
			t.Fatal(err)
		}
		wantFiles(t, b.dir, keep.ID)
		if _, err := b.GetVolume(t.Context(), v.ID); !errors.Is(err, csierr.NotFound) {
			t.Errorf("error %v, want not found", err)
		}
		b = reopen(t, b)
	}

	// A new volume of the same name has nothing of the old one.
	again := mustCreate(t, b, spec("a"))
	wantNoData(t, b, again.ID)
	// And what comes late for the old one does not hit it.
	if _, err := b.AttachVolume(t.Context(), again.ID, storage.Attachment{NodeID: "n1"}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.DetachVolume(t.Context(), v.ID, "n1"), b.DeleteVolume(t.Context(), v.ID)); err != nil {
		t.Error(err)
	}
	if got, err := b.GetVolume(t.Context(), again.ID); err != nil || got.Attachment == nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// A pool of an earlier version, which made the whole ID of the name: what is in it is
// found by its name, and what was begun is resumed.
func TestIDsOfEarlierVersion(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	b.reflink = false
	filled(t, b, "a")
	pieces := 0
	b.step = func(name string) error {
		if name == "copy" {
			if pieces++; pieces == 3 {
				return syscall.EIO
			}
		}
		return nil
	}
	_, err := b.CreateSnapshot(t.Context(), snap("s", b.volumeID("a")))
	wantCode(t, err, codes.Unavailable)
	was, now := strings.NewReplacer(b.volumeID("a"), volumeID("a"), b.snapshotID("s"), snapshotID("s")), ""
	closeBackend(t, b)
	for _, dir := range []string{"volumes", "snapshots"} {
		files, err := filepath.Glob(filepath.Join(b.dir, dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if ext := extension(file); ext == extMetadata || ext == extCopying {
				data, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				write(t, file, was.Replace(string(data)))
			}
			now = was.Replace(file)
			if err := os.Rename(file, now); err != nil {
				t.Fatal(err)
			}
		}
	}
	b = reopen(t, b)
	b.reflink = false
	if v := mustCreate(t, b, spec("a")); v.ID != volumeID("a") {
		t.Errorf("made a second time: %s", v.ID)
	}
	pieces = 0
	b.step = func(name string) error {
		if name == "copy" {
			pieces++
		}
		return nil
	}
	s := mustSnap(t, b, "s", volumeID("a"))
	if s.ID != snapshotID("s") || pieces != 1 {
		t.Errorf("%s, of which %d pieces of 3 were copied", s.ID, pieces)
	}
	wantFilled(t, b, s.ID, "a", gib)
	if err := b.DeleteVolume(t.Context(), volumeID("a")); err != nil {
		t.Error(err)
	}
	if v := mustCreate(t, b, spec("a")); v.ID == volumeID("a") {
		t.Error("created again with the ID of what was deleted")
	}
}

// A volume whose metadata cannot be read is not made a second time.
func TestNameOfDamagedVolume(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	v := mustCreate(t, b, spec("a"))
	write(t, b.file("volumes", v.ID+extMetadata), "{")
	b = reopen(t, b)
	_, err := b.CreateVolume(t.Context(), spec("a"))
	wantCode(t, err, codes.DataLoss, v.ID)
	wantFiles(t, b.dir, v.ID)
}

// IDs that this pool cannot have made must never become a path.
func TestForeignVolumeID(t *testing.T) {
	dir := t.TempDir()
	b := openBackend(t, dir, nil)
	mustRegister(t, b.pool, "n1")
	v := mustCreate(t, b, spec("a"))
	ctx := t.Context()
	for _, id := range []string{
		"", ".", "..", "/", "../volumes/" + v.ID, v.ID + "/", "./" + v.ID, v.ID + "\x00", v.ID + "\n", strings.ToUpper(v.ID),
		v.ID[:len(v.ID)-1], v.ID + "0", "vol-" + strings.Repeat("g", 32), "../.csikit-pool", v.ID + extMetadata,
		volumeID("never made"),
	} {
		if err := b.DeleteVolume(ctx, id); err != nil {
			t.Errorf("delete %q: %v", id, err)
		}
		if err := b.DetachVolume(ctx, id, "n1"); err != nil {
			t.Errorf("detach %q: %v", id, err)
		}
		_, err := b.GetVolume(ctx, id)
		wantCode(t, err, codes.NotFound)
		_, err = b.ReadVolume(id)
		wantCode(t, err, codes.NotFound)
		_, err = b.ExpandVolume(ctx, id, storage.CapacityRange{Required: 2 * gib})
		wantCode(t, err, codes.NotFound)
		_, err = b.AttachVolume(ctx, id, storage.Attachment{NodeID: "n1"})
		wantCode(t, err, codes.NotFound)
		d := &devices{poolSet: &poolSet[*pool]{configs: []poolConfig{{Dir: dir}}}}
		if images := d.images(id); id != volumeID("never made") && len(images) > 0 {
			t.Errorf("images of %q: %q", id, images)
		}
	}
	wantFiles(t, dir, v.ID)
}

func TestExpandVolume(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	v := mustCreate(t, b, spec("a"))
	for _, test := range []struct {
		r    storage.CapacityRange
		want int64
	}{
		{storage.CapacityRange{Required: 2 * gib}, 2 * gib},
		{storage.CapacityRange{Required: 2 * gib}, 2 * gib},
		{storage.CapacityRange{Required: gib}, 2 * gib},
		{storage.CapacityRange{Limit: 2 * gib}, 2 * gib},
		{storage.CapacityRange{Required: 2*gib + 1}, 2*gib + mib},
	} {
		got, err := b.ExpandVolume(t.Context(), v.ID, test.r)
		if err != nil || got.CapacityBytes != test.want {
			t.Fatalf("%v: got %+v, %v; want %d bytes", test.r, got, err, test.want)
		}
		image := b.image(v.ID)
		if info, err := os.Stat(image); err != nil || info.Size() != test.want {
			t.Errorf("image %v, %v", info, err)
		}
		b = reopen(t, b)
	}
	_, err := b.ExpandVolume(t.Context(), v.ID, storage.CapacityRange{Required: gib, Limit: gib})
	wantCode(t, err, codes.OutOfRange, "never shrink")
}

// An interrupted expansion leaves a larger image. A node may have seen it, so it is
// never made smaller again.
func TestExpandAfterCutOffExpansion(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	v := mustCreate(t, b, spec("a"))
	image := b.image(v.ID)
	if err := os.Truncate(image, 4*gib); err != nil {
		t.Fatal(err)
	}
	_, err := b.ExpandVolume(t.Context(), v.ID, storage.CapacityRange{Required: 2 * gib, Limit: 3 * gib})
	wantCode(t, err, codes.OutOfRange)
	got, err := b.ExpandVolume(t.Context(), v.ID, storage.CapacityRange{Required: 2 * gib})
	if err != nil || got.CapacityBytes != 4*gib {
		t.Fatalf("got %+v, %v", got, err)
	}
	if err := os.Truncate(image, 5*gib); err != nil {
		t.Fatal(err)
	}
	b = reopen(t, b)
	if got, err := b.GetVolume(t.Context(), v.ID); err != nil || got.CapacityBytes != 5*gib {
		t.Errorf("after restart: %+v, %v", got, err)
	}
}

func TestAttach(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	mustRegister(t, b.pool, "n1", "n2")
	v := mustCreate(t, b, spec("a"))
	ctx := t.Context()
	a := storage.Attachment{NodeID: "n1", AccessMode: "SINGLE_NODE_WRITER"}
	want := map[string]string{"image": "volumes/" + v.ID + ".img", "attachment": "1"}

	_, err := b.AttachVolume(ctx, v.ID, storage.Attachment{NodeID: "n3"})
	wantCode(t, err, codes.NotFound, `node "n3"`)
	for range 3 {
		got, err := b.AttachVolume(ctx, v.ID, a)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %v, %v; want %v", got, err, want)
		}
		// The node plugin is another process, which reads the disk.
		node, err := openPool(b.dir)
		if err != nil {
			t.Fatal(err)
		}
		seen, err := node.ReadVolume(v.ID)
		if err != nil || seen.Attachment == nil || seen.Attachment.Attachment != a || !maps.Equal(publishContext(seen), want) {
			t.Errorf("node sees %+v, %v", seen, err)
		}
		node.Close()
		b = reopen(t, b)
	}
	_, err = b.AttachVolume(ctx, v.ID, storage.Attachment{NodeID: "n2", AccessMode: a.AccessMode})
	wantCode(t, err, codes.FailedPrecondition, `"n1"`)
	_, err = b.AttachVolume(ctx, v.ID, storage.Attachment{NodeID: "n1", ReadOnly: true, AccessMode: "SINGLE_NODE_MULTI_WRITER"})
	wantCode(t, err, codes.AlreadyExists, `readonly: it has "false", the request wants "true"`, `access mode: it has "SINGLE_NODE_WRITER"`)

	if err := b.DetachVolume(ctx, v.ID, "n2"); err != nil {
		t.Fatal(err)
	}
	if got, _ := b.GetVolume(ctx, v.ID); got.Attachment == nil {
		t.Error("detached from n1 by a detach from n2")
	}
	for _, node := range []string{"n1", ""} {
		if _, err := b.AttachVolume(ctx, v.ID, a); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := b.DetachVolume(ctx, v.ID, node); err != nil {
				t.Fatal(err)
			}
			if got, _ := b.GetVolume(ctx, v.ID); got.Attachment != nil {
				t.Errorf("still attached: %+v", got)
			}
		}
		b = reopen(t, b)
		if got, _ := b.GetVolume(ctx, v.ID); got.Attachment != nil {
			t.Errorf("attached again after a restart: %+v", got)
		}
	}
}

func TestListVolumes(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	for i := range 20 {
		mustCreate(t, b, spec(fmt.Sprint(i)))
	}
	all := list(t, b)
	if len(all) != 20 || !slices.IsSortedFunc(all, func(x, y volume) int { return strings.Compare(x.ID, y.ID) }) {
		t.Fatalf("%d volumes, sorted or not: %v", len(all), all)
	}
	for _, limit := range []int{1, 3, 10, 19, 20, 21} {
		var got []volume
		for token := ""; ; {
			page, next, err := b.ListVolumes(t.Context(), token, limit)
			if err != nil || len(page) > limit || len(page) == 0 {
				t.Fatalf("limit %d: %d volumes, %v", limit, len(page), err)
			}
			got = append(got, page...)
			if token = next; token == "" {
				break
			}
		}
		if !reflect.DeepEqual(got, all) {
			t.Errorf("limit %d: %d volumes", limit, len(got))
		}
	}

	// Volumes that go, that of the token among them, neither repeat nor hide
	// others.
	page, token, _ := b.ListVolumes(t.Context(), "", 10)
	for _, v := range []volume{page[0], page[9], all[12]} {
		if err := b.DeleteVolume(t.Context(), v.ID); err != nil {
			t.Fatal(err)
		}
	}
	rest, next, err := b.ListVolumes(t.Context(), token, 0)
	if want := slices.Delete(slices.Clone(all[10:]), 2, 3); err != nil || next != "" || !reflect.DeepEqual(rest, want) {
		t.Errorf("got %d volumes, %q, %v; want %d", len(rest), next, err, len(want))
	}
	for _, token := range []string{"0", "10", "vol-", all[0].ID + "x", strings.ToUpper(all[0].ID), "../x"} {
		_, _, err := b.ListVolumes(t.Context(), token, 0)
		wantCode(t, err, codes.Aborted, "start again")
	}
}

func TestDamagedMetadata(t *testing.T) {
	dir := t.TempDir()
	b := openBackend(t, dir, nil)
	mustRegister(t, b.pool, "n1")
	good := mustCreate(t, b, spec("good"))
	bad := mustCreate(t, b, spec("bad"))
	file := filepath.Join(dir, "volumes", bad.ID+extMetadata)
	sound, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for name, text := range map[string]string{
		"empty":           "",
		"truncated":       string(sound[:len(sound)/2]),
		"not an object":   "7",
		"no version":      strings.Replace(string(sound), `"version": 1`, `"version": 0`, 1),
		"newer":           strings.Replace(string(sound), `"version": 1`, `"version": 2`, 1),
		"another volume":  strings.Replace(string(sound), bad.ID, good.ID, 1),
		"no capacity":     strings.Replace(string(sound), "1073741824", "0", 1),
		"unknown purpose": strings.Replace(string(sound), "ext4", "vfat", 1),
	} {
		t.Run(name, func(t *testing.T) {
			if text == string(sound) {
				t.Fatal("nothing was damaged")
			}
			write(t, file, text)
			var log bytes.Buffer
			b.Close()
			b.pool.Close()
			b = openBackend(t, dir, slog.New(slog.NewTextHandler(&log, nil)))
			if !strings.Contains(log.String(), bad.ID) || strings.Contains(log.String(), good.ID+" ") {
				t.Errorf("log: %s", &log)
			}
			wantFiles(t, dir, good.ID, bad.ID)

			_, err := b.CreateVolume(ctx, spec("bad"))
			wantCode(t, err, codes.DataLoss, file)
			wantCode(t, b.DeleteVolume(ctx, bad.ID), codes.DataLoss)
			_, err = b.AttachVolume(ctx, bad.ID, storage.Attachment{NodeID: "n1"})
			wantCode(t, err, codes.DataLoss)
			wantCode(t, b.DetachVolume(ctx, bad.ID, ""), codes.DataLoss)
			_, err = b.ExpandVolume(ctx, bad.ID, storage.CapacityRange{Required: 2 * gib})
			wantCode(t, err, codes.DataLoss)
			_, err = b.GetVolume(ctx, bad.ID)
			wantCode(t, err, codes.DataLoss)
			if got := list(t, b); len(got) != 2 {
				t.Errorf("list: %+v", got)
			}
			if _, err := b.AttachVolume(ctx, good.ID, storage.Attachment{NodeID: "n1"}); err != nil {
				t.Errorf("the other volume: %v", err)
			}
			wantFiles(t, dir, good.ID, bad.ID)

			// A repair needs no restart.
			write(t, file, string(sound))
			if got := mustCreate(t, b, spec("bad")); !reflect.DeepEqual(got, bad) {
				t.Errorf("after repair: %+v", got)
			}
			if got := list(t, b); !slices.ContainsFunc(got, func(v volume) bool { return reflect.DeepEqual(v, bad) }) {
				t.Errorf("list after repair: %+v", got)
			}
		})
	}
}

func TestDamagedImage(t *testing.T) {
	for name, damage := range map[string]func(file string) error{
		"missing":   os.Remove,
		"truncated": func(file string) error { return os.Truncate(file, gib-1) },
		"not a file": func(file string) error {
			return errors.Join(os.Remove(file), os.Mkdir(file, 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := openBackend(t, t.TempDir(), nil)
			mustRegister(t, b.pool, "n1")
			v := mustCreate(t, b, spec("a"))
			image := b.image(v.ID)
			if err := damage(image); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				_, err := b.AttachVolume(t.Context(), v.ID, storage.Attachment{NodeID: "n1"})
				wantCode(t, err, codes.DataLoss, image)
				_, err = b.ExpandVolume(t.Context(), v.ID, storage.CapacityRange{Required: 2 * gib})
				wantCode(t, err, codes.DataLoss, image)
				b = reopen(t, b)
			}
			if err := b.DeleteVolume(t.Context(), v.ID); err != nil {
				t.Fatalf("a damaged volume can be deleted: %v", err)
			}
			wantFiles(t, b.dir)
		})
	}
}

// An image whose metadata is missing is removed only if nothing was ever
// written to it.
func TestImageWithoutMetadata(t *testing.T) {
	dir := t.TempDir()
	b := openBackend(t, dir, nil)
	metadata := func(v volume) string { return filepath.Join(dir, "volumes", v.ID+extMetadata) }
	if err := os.Remove(metadata(mustCreate(t, b, spec("a")))); err != nil {
		t.Fatal(err)
	}
	b = reopen(t, b)
	wantFiles(t, dir)

	a := mustCreate(t, b, spec("a"))
	image := b.image(a.ID)
	sound, _ := os.ReadFile(metadata(a))
	if err := errors.Join(writeData(b, a.ID), os.Remove(metadata(a))); err != nil {
		t.Fatal(err)
	}
	b = reopen(t, b)
	wantCode(t, b.DeleteVolume(t.Context(), a.ID), codes.DataLoss, image)
	_, err := b.CreateVolume(t.Context(), spec("a"))
	wantCode(t, err, codes.DataLoss, image, "holds data")
	if got := files(t, dir); !slices.Equal(got, []string{a.ID + extImage}) {
		t.Fatalf("files: %v", got)
	}
	write(t, metadata(a), string(sound))
	b = reopen(t, b)
	if got := mustCreate(t, b, spec("a")); !reflect.DeepEqual(got, a) {
		t.Errorf("after repair: %+v", got)
	}
}

func TestRepairAtStart(t *testing.T) {
	dir := t.TempDir()
	b := openBackend(t, dir, nil)
	keep, gone := mustCreate(t, b, spec("keep")), mustCreate(t, b, spec("gone"))
	volumes := filepath.Join(dir, "volumes")
	write(t, filepath.Join(volumes, keep.ID+".json.tmp"), `{"ver`) // killed while writing
	write(t, filepath.Join(volumes, keep.ID+extDeleting), "")      // a mark that a power failure restored
	write(t, filepath.Join(volumes, "notes.txt"), "")              // foreign
	write(t, filepath.Join(volumes, "x.tmp"), "")                  // foreign
	if err := os.Rename(filepath.Join(volumes, gone.ID+extMetadata), filepath.Join(volumes, gone.ID+extDeleting)); err != nil {
		t.Fatal(err)
	}
	b = reopen(t, b)
	want := []string{"notes.txt", keep.ID + extImage, keep.ID + extMetadata, "x.tmp"}
	if got := files(t, dir); !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	if got := list(t, b); !reflect.DeepEqual(got, []volume{keep}) {
		t.Errorf("list: %+v", got)
	}
}

// Power failures cannot be tested here, but what survives one is decided by the
// order of these steps.
func TestStepOrder(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	mustRegister(t, b.pool, "n1")
	var steps []string
	b.step = func(name string) error { steps = append(steps, name); return nil }
	ctx, id := t.Context(), ""
	save := []string{"write temp", "rename", "sync dir"}
	for _, test := range []struct {
		name string
		op   func() error
		want []string
	}{
		{"create", func() error { v, err := b.CreateVolume(ctx, spec("a")); id = v.ID; return err },
			slices.Concat([]string{"create image", "truncate image", "sync image", "sync dir"}, save)},
		{"attach", func() error { _, err := b.AttachVolume(ctx, id, storage.Attachment{NodeID: "n1"}); return err }, save},
		{"attach again", func() error { _, err := b.AttachVolume(ctx, id, storage.Attachment{NodeID: "n1"}); return err }, nil},
		{"detach", func() error { return b.DetachVolume(ctx, id, "n1") }, save},
		{"detach again", func() error { return b.DetachVolume(ctx, id, "n1") }, nil},
		{"expand", func() error { _, err := b.ExpandVolume(ctx, id, storage.CapacityRange{Required: 2 * gib}); return err },
			slices.Concat([]string{"truncate image", "sync image"}, save)},
		{"expand again", func() error { _, err := b.ExpandVolume(ctx, id, storage.CapacityRange{Required: 2 * gib}); return err }, nil},
		{"delete", func() error { return b.DeleteVolume(ctx, id) }, []string{"rename", "sync dir", "remove", "sync dir", "remove", "remove"}},
		{"delete again", func() error { return b.DeleteVolume(ctx, id) }, []string{"remove"}},
	} {
		steps = nil
		if err := test.op(); err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if !slices.Equal(steps, test.want) {
			t.Errorf("%s: steps %q, want %q", test.name, steps, test.want)
		}
	}
}

// TestFaults fails every step of every operation in turn, as an I/O error or as
// a kill, and then continues in every sensible way. Whatever happened, the pool
// must end as if it had not.
func TestFaults(t *testing.T) {
	ctx := context.Background()
	attach := func(b *fileBackend) error {
		_, err := b.AttachVolume(ctx, b.volumeID("a"), storage.Attachment{NodeID: "n1", AccessMode: "SINGLE_NODE_WRITER"})
		return err
	}
	detach := func(b *fileBackend) error { return b.DetachVolume(ctx, b.volumeID("a"), "n1") }
	create := func(b *fileBackend) error { _, err := b.CreateVolume(ctx, spec("a")); return err }
	expand := func(b *fileBackend) error {
		_, err := b.ExpandVolume(ctx, b.volumeID("a"), storage.CapacityRange{Required: 2 * gib})
		return err
	}
	remove := func(b *fileBackend) error { return b.DeleteVolume(ctx, b.volumeID("a")) }
	// The delete comes once more, late.
	createAnew := func(b *fileBackend) error {
		was := b.volumeID("a")
		v, err := b.CreateVolume(ctx, spec("a"))
		if v.ID != was {
			err = errors.Join(err, b.DeleteVolume(ctx, was))
		}
		return err
	}
	none := func(*fileBackend) error { return nil }
	fill := func(b *fileBackend) error { return writeData(b, b.volumeID("a")) }
	type op = func(*fileBackend) error

	const absent = -1
	tests := []struct {
		name   string
		before []op
		op     op
		then   op    // instead of the retry, or the retry
		size   int64 // of the volume at the end, or absent
		node   string
	}{
		{"create, retried", nil, create, create, gib, ""},
		{"create, deleted", nil, create, remove, absent, ""},
		{"create after delete, retried", []op{create, fill, remove}, create, create, gib, ""},
		{"delete, retried", []op{create, fill}, remove, remove, absent, ""},
		{"delete, created again", []op{create, fill}, remove, createAnew, gib, ""},
		{"delete, detached", []op{create, fill}, func(b *fileBackend) error { return remove(b) },
			func(b *fileBackend) error { return errors.Join(detach(b), remove(b)) }, absent, ""},
		{"attach, retried", []op{create}, attach, attach, gib, "n1"},
		{"attach, detached", []op{create}, attach, detach, gib, ""},
		{"detach, retried", []op{create, attach}, detach, detach, gib, ""},
		{"detach, attached again", []op{create, attach}, detach, attach, gib, "n1"},
		{"expand, retried", []op{create}, expand, expand, 2 * gib, ""},
		{"expand, retried while attached", []op{create, attach}, expand, expand, 2 * gib, "n1"},
		{"expand, deleted", []op{create, fill}, expand, remove, absent, ""},
	}
	modes := []struct {
		name string
		// last reports whether step number i fails when n is the first one to
		// fail.
		fails   func(i, n int) bool
		restart bool
	}{
		{"one error", func(i, n int) bool { return i == n }, false},
		{"one error and a restart", func(i, n int) bool { return i == n }, true},
		{"errors from then on", func(i, n int) bool { return i >= n }, false},
		{"kill", func(i, n int) bool { return i >= n }, true}, // nothing is undone after a kill
	}
	errInjected := fmt.Errorf("injected: %w", syscall.EIO)
	for _, test := range tests {
		for _, mode := range modes {
			t.Run(test.name+"/"+mode.name, func(t *testing.T) {
				t.Parallel()
				for n := 1; ; n++ {
					dir := t.TempDir()
					b := openBackend(t, dir, nil)
					mustRegister(t, b.pool, "n1")
					bystander := mustCreate(t, b, spec("bystander"))
					for _, op := range test.before {
						if err := op(b); err != nil {
							t.Fatal(err)
						}
					}
					i, hit := 0, false
					b.step = func(name string) error {
						if i++; !mode.fails(i, n) {
							return nil
						}
						if !hit && name == "write temp" { // half of it was written
							write(t, filepath.Join(dir, "volumes", b.volumeID("a")+".json.tmp"), `{"ver`)
						}
						hit = true
						return errInjected
					}
					err := test.op(b)
					b.step = nil
					if !hit {
						if err != nil || n == 1 {
							t.Fatalf("step %d: nothing was injected, error %v", n, err)
						}
						closeBackend(t, b)
						return
					}
					if err == nil {
						t.Fatalf("step %d: the failure was swallowed", n)
					}
					wantCode(t, err, codes.Unavailable)

					id := b.volumeID("a")
					// The only failure was undone, unless its outcome is open.
					if got := files(t, dir); mode.name == "one error" && !inDoubt(b, id) && !slices.Contains(got, id+extDeleting) {
						var ids []string
						for _, v := range list(t, b) {
							ids = append(ids, v.ID)
						}
						wantFiles(t, dir, ids...)
					}
					if mode.restart {
						b = reopen(t, b)
						if len(test.before) == 0 {
							if _, err := b.GetVolume(ctx, id); err != nil {
								wantFiles(t, dir, bystander.ID)
							}
						}
					}
					if err := test.then(b); err != nil {
						t.Fatalf("step %d: then: %v", n, err)
					}
					for _, again := range []op{none, test.then} {
						if err := again(b); err != nil {
							t.Fatalf("step %d: again: %v", n, err)
						}
						checkPool(t, b, bystander, b.volumeID("a"), test.size, test.node)
						b = reopen(t, b)
						checkPool(t, b, bystander, b.volumeID("a"), test.size, test.node)
					}
					closeBackend(t, b)
				}
			})
		}
	}
}

// writeData is what a workload does to its volume.
func writeData(b *fileBackend, id string) error {
	f, err := b.volumes.OpenFile(id+extImage, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte("data"), gib/2)
	return errors.Join(err, f.Close())
}

// wantNoData checks that the image takes no room: it is sparse, and reads as
// zeros.
func wantNoData(t *testing.T, b *fileBackend, id string) {
	t.Helper()
	f, err := b.volumes.Open(id + extImage)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if data, err := holdsData(f); data || err != nil {
		t.Errorf("image holds data: %t, %v", data, err)
	}
}

// checkPool checks that the pool holds the bystander as it was, and the volume
// with this size and node, or not at all.
func checkPool(t *testing.T, b *fileBackend, bystander volume, id string, size int64, node string) {
	t.Helper()
	want := []volume{bystander}
	if size > 0 {
		v := volume{ID: id, Name: "a", CapacityBytes: size, AccessType: "ext4"}
		if node != "" {
			v.Attachment = &attachment{Attachment: storage.Attachment{NodeID: node, AccessMode: "SINGLE_NODE_WRITER"}}
			if got, err := b.GetVolume(t.Context(), id); err == nil && got.Attachment != nil {
				v.Attachment.Generation = got.Attachment.Generation
			}
		}
		want = append(want, v)
	}
	slices.SortFunc(want, func(x, y volume) int { return strings.Compare(x.ID, y.ID) })
	var ids []string
	for _, v := range want {
		ids = append(ids, v.ID)
		onDisk, err := b.ReadVolume(v.ID)
		onDisk.Generation = v.Generation
		if err != nil || !reflect.DeepEqual(onDisk, v) {
			t.Fatalf("on the disk: %+v, %v; want %+v", onDisk, err, v)
		}
		if size, err := b.checkImage(b.volumes, "volumes", v.ID, v.CapacityBytes); err != nil || size != v.CapacityBytes {
			t.Fatalf("image: %d bytes, %v; want %d", size, err, v.CapacityBytes)
		}
	}
	got := list(t, b)
	for i := range min(len(got), len(want)) {
		got[i].Generation = want[i].Generation
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("list %+v, want %+v", got, want)
	}
	wantFiles(t, b.dir, ids...)
}

// The repair at the start can be killed like everything else.
func TestFaultsAtStart(t *testing.T) {
	for n := 1; ; n++ {
		dir := t.TempDir()
		b := openBackend(t, dir, nil)
		bystander, v := mustCreate(t, b, spec("bystander")), mustCreate(t, b, spec("a"))
		gone, half := mustCreate(t, b, spec("gone")), mustCreate(t, b, spec("half"))
		volumes := filepath.Join(dir, "volumes")
		image := b.image(v.ID)
		if err := errors.Join(
			os.Rename(filepath.Join(volumes, gone.ID+extMetadata), filepath.Join(volumes, gone.ID+extDeleting)),
			os.Rename(filepath.Join(volumes, half.ID+extMetadata), filepath.Join(volumes, half.ID+extMetadata+extTemp)),
			os.Truncate(image, 2*gib),
		); err != nil {
			t.Fatal(err)
		}
		closeBackend(t, b)

		p, err := initPool(dir)
		if err != nil {
			t.Fatal(err)
		}
		i := 0
		p.step = func(string) error {
			if i++; i >= n {
				return syscall.EIO
			}
			return nil
		}
		started, err := newFileBackend(p, nil)
		if err != nil {
			t.Fatalf("what fails for one volume must not keep the others down: %v", err)
		}
		if _, err := started.CreateVolume(t.Context(), spec("bystander")); err != nil {
			t.Fatalf("bystander: %v", err)
		}
		closeBackend(t, started)

		b = openBackend(t, dir, nil)
		checkPool(t, b, bystander, v.ID, 2*gib, "")
		closeBackend(t, b)
		if i < n {
			if n < 5 {
				t.Fatalf("only %d steps were taken", i)
			}
			return
		}
	}
}

func TestFullPool(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	mustRegister(t, b.pool, "n1")
	v := mustCreate(t, b, spec("a"))
	ctx := t.Context()
	b.step = func(name string) error {
		if name == "create image" || name == "write temp" {
			return syscall.ENOSPC
		}
		return nil
	}
	_, err := b.CreateVolume(ctx, spec("b"))
	wantCode(t, err, codes.ResourceExhausted)
	_, err = b.AttachVolume(ctx, v.ID, storage.Attachment{NodeID: "n1"})
	wantCode(t, err, codes.Unavailable) // not: the node takes no more volumes
	wantFiles(t, b.dir, v.ID)
	if err := b.DeleteVolume(ctx, v.ID); err != nil {
		t.Errorf("a full pool must let volumes go: %v", err)
	}
	wantFiles(t, b.dir)
	mustRegister(t, b.pool, "n1") // nothing new is written
}

// What has to be written in a full pool gets its spare room, and nothing else does.
func TestSpareRoom(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	mustRegister(t, b.pool, "n1")
	v := mustCreate(t, b, spec("a"))
	ctx := t.Context()
	spare := func() int64 {
		info, err := b.root.Stat(spareName)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	full := spare()
	b.step = func(name string) error {
		if name == "write temp" && spare() >= full {
			return syscall.ENOSPC
		}
		return nil
	}
	_, err := b.CreateVolume(ctx, spec("b"))
	wantCode(t, err, codes.ResourceExhausted)
	if spare() != spareSize {
		t.Errorf("a new volume took of the spare room: %d bytes are left", spare())
	}
	b.space = func() (int64, int64, error) { return 1 << 40, 0, nil }
	b.limits.reserve = 5
	for i, op := range []func() error{
		func() error { _, err := b.AttachVolume(ctx, v.ID, storage.Attachment{NodeID: "n1"}); return err },
		func() error { return b.DetachVolume(ctx, v.ID, "") },
		func() error { return b.ModifyVolume(ctx, v.ID, map[string]string{paramReadAhead: "64"}) },
		func() error { return b.RegisterNode("n2", 0, nil) },
	} {
		if full = spare(); op() != nil || spare() != full-sparePiece {
			t.Errorf("%d: the spare room had %d bytes and has %d", i, full, spare())
		}
	}
	full = 0
	wantCode(t, b.DetachVolume(ctx, v.ID, "n2"), codes.OK)
	_, err = b.AttachVolume(ctx, v.ID, storage.Attachment{NodeID: "n2"})
	wantCode(t, err, codes.Unavailable)
	if spare() != 0 {
		t.Errorf("%d bytes are left of the spare room", spare())
	}
	b.step, b.space = nil, func() (int64, int64, error) { return 1 << 40, 1 << 40, nil }
	mustCreate(t, b, spec("b"))
	if spare() != spareSize {
		t.Errorf("the spare room was not made up for: %d bytes", spare())
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := openBackend(t, dir, nil)
		v := mustCreate(t, b, spec("a"))
		unlock, err := b.lock(t.Context(), "test", volumelock.KindVolume, v.ID)
		if err != nil {
			t.Fatal(err)
		}
		if other := mustCreate(t, b, spec("b")); other.ID == v.ID {
			t.Error("two names, one volume")
		}
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp, waited := make(chan error, 1), make(chan error, 1)
		go func() { gaveUp <- b.DeleteVolume(ctx, v.ID) }()
		go func() {
			_, err := b.ExpandVolume(t.Context(), v.ID, storage.CapacityRange{Required: 2 * gib})
			waited <- err
		}()
		synctest.Wait()
		cancel()
		wantCode(t, <-gaveUp, codes.Aborted, v.ID)
		select {
		case err := <-waited:
			t.Fatalf("did not wait: %v", err)
		default:
		}
		unlock()
		if err := <-waited; err != nil {
			t.Fatal(err)
		}
		wantCode(t, b.DeleteVolume(ctx, v.ID), codes.Canceled)
		if left := b.table.Snapshot(); len(left) != 0 {
			t.Errorf("locks left: %v", left)
		}
	})
}

func TestConcurrentCreate(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			if _, err := b.CreateVolume(t.Context(), spec(fmt.Sprint(i%4))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := list(t, b); len(got) != 4 {
		t.Errorf("%d volumes, want 4", len(got))
	}
}

// A node's record that is damaged says what to do; no volume is lost by it.
func TestAttachToDamagedNode(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	v := mustCreate(t, b, spec("a"))
	for _, text := range []string{"", "{", `{"version":2,"node_id":"n1"}`, `{"version":1,"node_id":"n2"}`} {
		write(t, b.file("nodes", "n1"+extMetadata), text)
		_, err := b.AttachVolume(t.Context(), v.ID, storage.Attachment{NodeID: "n1"})
		wantCode(t, err, codes.Unavailable, "restart the node plugin")
	}
	mustRegister(t, b.pool, "n1")
	if _, err := b.AttachVolume(t.Context(), v.ID, storage.Attachment{NodeID: "n1"}); err != nil {
		t.Error(err)
	}
}

func TestConcurrentAttach(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	v := mustCreate(t, b, spec("a"))
	var wg sync.WaitGroup
	var mu sync.Mutex
	var winners []string
	for i := range 16 {
		node := fmt.Sprintf("n%d", i)
		mustRegister(t, b.pool, node)
		wg.Go(func() {
			_, err := b.AttachVolume(t.Context(), v.ID, storage.Attachment{NodeID: node})
			if err == nil {
				mu.Lock()
				winners = append(winners, node)
				mu.Unlock()
			} else if status.Code(err) != codes.FailedPrecondition {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got, err := b.GetVolume(t.Context(), v.ID)
	if err != nil || len(winners) != 1 || got.Attachment.NodeID != winners[0] {
		t.Errorf("attached to %v, winners %v, error %v", got.Attachment, winners, err)
	}
}

// The last places of a node go to as many as there are, also after a restart.
func TestAttachLimit(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	if err := b.RegisterNode("n", 3, nil); err != nil {
		t.Fatal(err)
	}
	attach := func(id, node string) error {
		_, err := b.AttachVolume(t.Context(), id, storage.Attachment{NodeID: node})
		return err
	}
	var wg sync.WaitGroup
	var attached, refused atomic.Int64
	for i := range 8 {
		v := mustCreate(t, b, spec(fmt.Sprint(i)))
		wg.Go(func() {
			switch err := attach(v.ID, "n"); status.Code(err) {
			case codes.OK:
				attached.Add(1)
			case codes.ResourceExhausted:
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if attached.Load() != 3 || refused.Load() != 5 {
		t.Errorf("%d attached and %d refused, want 3 and 5", attached.Load(), refused.Load())
	}
	b = reopen(t, b)
	again := 0
	for i := range 8 {
		if attach(b.volumeID(fmt.Sprint(i)), "n") == nil {
			again++ // those that were attached before
		}
	}
	if again != 3 || b.attached.count("n") != 3 {
		t.Errorf("after a restart %d of 3 attach again, %d are counted", again, b.attached.count("n"))
	}
	for i := range 8 {
		if err := b.DetachVolume(t.Context(), b.volumeID(fmt.Sprint(i)), "n"); err != nil {
			t.Fatal(err)
		}
	}
	if len(b.attached.of) > 0 {
		t.Errorf("counted as attached after all were detached: %v", b.attached.of)
	}
}

// Everything concurrently, as sidecars do it: after it, memory and disk must agree
// and no file be left over.
func TestConcurrentOperations(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	mustRegister(t, b.pool, "n0", "n1")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(worker)))
			ctx := t.Context()
			for range 40 {
				name := fmt.Sprint(r.IntN(4))
				id, node := b.volumeID(name), fmt.Sprintf("n%d", r.IntN(2))
				var err error
				switch r.IntN(7) {
				case 0, 1:
					_, err = b.CreateVolume(ctx, storage.VolumeSpec{Name: name, AccessType: "ext4"})
				case 2:
					err = b.DeleteVolume(ctx, id)
				case 3:
					_, err = b.AttachVolume(ctx, id, storage.Attachment{NodeID: node})
				case 4:
					err = b.DetachVolume(ctx, id, node)
				case 5:
					_, err = b.ExpandVolume(ctx, id, storage.CapacityRange{Required: int64(1+r.IntN(8)) * gib})
				case 6:
					_, _, err = b.ListVolumes(ctx, "", r.IntN(5))
				}
				switch status.Code(err) {
				case codes.OK, codes.NotFound, codes.FailedPrecondition:
				default:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	before := list(t, b)
	var ids []string
	for _, v := range before {
		ids = append(ids, v.ID)
	}
	wantFiles(t, b.dir, ids...)
	if after := list(t, reopen(t, b)); !reflect.DeepEqual(after, before) {
		t.Errorf("after a restart: %+v, before: %+v", after, before)
	}
}

// What the file system says of its room has a code of its own.
func TestErrorCodes(t *testing.T) {
	wantCode(t, csierr.Errorf("create volume", "a", "%w", syscall.EIO), codes.Unavailable)
	wantCode(t, csierr.Errorf("create volume", "a", "%w", withSpaceKind(syscall.EFBIG)), codes.OutOfRange)
	wantCode(t, csierr.Errorf("create volume", "a", "%w", withSpaceKind(syscall.EDQUOT)), codes.ResourceExhausted)
}

func inDoubt(b *fileBackend, id string) bool {
	r, _ := b.vols.lookUp(id)
	return r.inDoubt
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
