package filepool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/topology"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const testZone = "topology.example.com/zone"

func zone(names ...string) *csi.TopologyRequirement {
	r := &csi.TopologyRequirement{}
	for _, n := range names {
		r.Requisite = append(r.Requisite, &csi.Topology{Segments: map[string]string{testZone: n}})
	}
	r.Preferred = r.Requisite
	return r
}

// openTestPools opens the pools a1 and a2 in zone a and b1 in zone b, with as much
// room as free says, a terabyte otherwise.
func openTestPools(t *testing.T, dir string, free map[string]int64) *filePools {
	t.Helper()
	needLinux(t)
	var configs []poolConfig
	for _, name := range []string{"a1", "a2", "b1"} {
		c := poolConfig{Name: name, Dir: filepath.Join(dir, name), Segments: topology.Segments{testZone: name[:1]}}
		if _, err := os.Lstat(c.Dir); err != nil {
			makePool(t, c.Dir)
		}
		configs = append(configs, c)
	}
	m, err := openPools(t.Context(), configs, policy{}, testEnv())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	for _, b := range m.here() {
		b.space = func() (int64, int64, error) {
			if f, ok := free[b.name]; ok {
				return 1 << 40, f, nil
			}
			return 1 << 40, 1 << 39, nil
		}
	}
	return m
}

func testEnv() storage.Env {
	return storage.Env{Logger: slog.New(slog.DiscardHandler), Work: new(blocking.Group)}
}

// openTestDevices opens the pools as the node n.
func openTestDevices(t *testing.T, configs ...poolConfig) (*devices, error) {
	t.Helper()
	return openDevices(t.Context(), configs, 0, storage.NodeEnv{Env: testEnv(), NodeID: "n"})
}

func in(name string, r *csi.TopologyRequirement) storage.VolumeSpec {
	s := spec(name)
	s.Requirement = r
	return s
}

// poolOf says which pool holds the volume on the disk, and that no other does.
func poolOf(t *testing.T, dir, name string) string {
	t.Helper()
	found := ""
	for _, p := range []string{"a1", "a2", "b1"} {
		if _, err := os.Stat(filepath.Join(dir, p, "volumes", idOnDisk(volumeKind, name, filepath.Join(dir, p))+extMetadata)); err == nil {
			if found != "" {
				t.Fatalf("%s is in %s and in %s", name, found, p)
			}
			found = p
		}
	}
	return found
}

func TestPlacement(t *testing.T) {
	free := map[string]int64{"a1": 3 * gib, "a2": 10 * gib, "b1": 5 * gib}
	for i, test := range []struct {
		required *csi.TopologyRequirement
		size     int64
		want     string
		code     codes.Code
	}{
		{nil, gib, "a2", codes.OK}, // the most free
		{zone("a"), gib, "a2", codes.OK},
		{zone("b"), gib, "b1", codes.OK},
		{zone("b", "a"), gib, "b1", codes.OK}, // the preferred one comes first
		{zone("b", "a"), 6 * gib, "a2", codes.OK},
		{zone("b"), 6 * gib, "", codes.ResourceExhausted},
		{zone("c"), gib, "", codes.ResourceExhausted},
		{nil, 11 * gib, "", codes.ResourceExhausted},
	} {
		dir := t.TempDir()
		m := openTestPools(t, dir, free)
		s := in("v", test.required)
		s.Capacity.Required = test.size
		v, err := m.CreateVolume(t.Context(), s)
		wantCode(t, err, test.code)
		if got := poolOf(t, dir, "v"); got != test.want {
			t.Errorf("%d: the volume is in %q, want %q", i, got, test.want)
		}
		if err == nil && v.Segments[testZone] != test.want[:1] {
			t.Errorf("%d: accessible from %v", i, v.Segments)
		}
	}
}

// While a pool does not answer, one call waits for it, however many ask; the others go
// on, and what might fit there is not refused.
func TestPoolThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	m := openTestPools(t, t.TempDir(), nil)
	v, err := m.CreateVolume(t.Context(), in("v", zone("b")))
	if err != nil {
		t.Fatal(err)
	}
	hang, asked := make(chan struct{}), make(chan struct{}, 100)
	m.named("b1").space = func() (int64, int64, error) {
		asked <- struct{}{}
		<-hang
		return 1 << 40, 1 << 39, nil
	}
	if places, err := m.Places(t.Context()); err != nil || len(places) != 2 {
		t.Errorf("%v, %v", places, err)
	}
	<-asked
	// Later callers have no time at all.
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := m.CreateVolume(ctx, in("w", zone("b")))
		if code := status.Code(err); code == codes.OK || code == codes.ResourceExhausted {
			t.Errorf("create: %v", err)
		}
		problems, err := m.CheckVolume(ctx, v.ID)
		if err != nil || len(problems) != 1 || problems[0].Reason != reasonAway {
			t.Errorf("health: %v, %v", problems, err)
		}
		cancel()
	}
	if len(asked) != 0 {
		t.Errorf("%d more calls hang", len(asked))
	}
	if w, err := m.CreateVolume(t.Context(), in("elsewhere", zone("a"))); err != nil || w.Segments[testZone] != "a" {
		t.Error(err)
	}
	close(hang)
	if _, err := m.CreateVolume(t.Context(), in("w", zone("b"))); err != nil {
		t.Error(err)
	}
}

// A pool that does not answer does not block the volumes of another one.
func TestNodeOfAPoolBesideOneThatDoesNotAnswer(t *testing.T) {
	needLinux(t)
	t.Parallel()
	var configs []poolConfig
	for _, name := range []string{"silent", "default"} {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		makePool(t, dir)
		configs = append(configs, poolConfig{Name: name, Dir: dir})
	}
	n, err := openTestDevices(t, configs...)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	hang := make(chan struct{})
	defer close(hang)
	n.here()[0].space = func() (int64, int64, error) { <-hang; return 0, 0, nil }
	id := volumeID("a")
	for i, want := range []*pool{n.here()[0], n.here()[1]} {
		if i == 1 {
			if err := want.volumes.WriteFile(id+extMetadata, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		p, err := n.holding(t.Context(), "find", id)
		if p != want || (err == nil) != (i == 1) {
			t.Errorf("found %v, %v", p, err)
		}
	}
}

// kubelet asks for usage and health each minute, whether or not it had an answer.
func TestNodeOfAPoolThatDoesNotAnswer(t *testing.T) {
	needLinux(t)
	dir := t.TempDir()
	makePool(t, dir)
	n, err := openTestDevices(t, poolConfig{Name: "default", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	hang, asked := make(chan struct{}), make(chan struct{}, 100)
	n.here()[0].space = func() (int64, int64, error) {
		asked <- struct{}{}
		<-hang
		return 1 << 40, 1 << 39, nil
	}
	id := volumeID("a")
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := n.Find(ctx, id)
		wantCode(t, err, codes.DeadlineExceeded)
		health, err := n.CheckVolume(ctx, id)
		if err != nil {
			t.Error(err)
		}
		if len(health) != 1 || health[0].Reason != reasonAway {
			t.Errorf("%+v", health)
		}
		if s := n.CheckStorage(ctx); len(s) != 1 || s[0].Reason != reasonAway || s[0].Severity != csi.StorageHealthErrorType_STORAGE_UNREACHABLE {
			t.Errorf("%+v", s)
		}
		cancel()
	}
	if len(asked) > 1 {
		t.Errorf("%d calls hang", len(asked))
	}
	close(hang)
	_, err = n.Find(t.Context(), id)
	wantCode(t, err, codes.NotFound)
}

// A pool that gets full and does not let go of what was made in it keeps the name: in
// another pool the volume would be there twice.
func TestFullPoolKeepsWhatItCannotRemove(t *testing.T) {
	for _, fails := range []string{"sync image", "write temp"} {
		dir := t.TempDir()
		m := openTestPools(t, dir, map[string]int64{"a1": 3 * gib, "a2": 10 * gib, "b1": 5 * gib})
		b := m.named("a2")
		b.step = func(name string) error {
			return map[string]error{fails: syscall.ENOSPC, "remove": syscall.EIO}[name]
		}
		_, err := m.CreateVolume(t.Context(), in("v", nil))
		wantCode(t, err, codes.Unavailable)
		b.step = nil
		if _, err := m.CreateVolume(t.Context(), in("v", nil)); err != nil || poolOf(t, dir, "v") != "a2" {
			t.Errorf("%s: %v, and the volume is in %q", fails, err, poolOf(t, dir, "v"))
		}
	}
}

// A name is one volume in all pools together, whatever else is asked for, and also
// when the place that was chosen would now be another one.
func TestOneNameInAllPools(t *testing.T) {
	dir, free := t.TempDir(), map[string]int64{}
	m := openTestPools(t, dir, free)
	first, err := m.CreateVolume(t.Context(), in("v", zone("b")))
	if err != nil {
		t.Fatal(err)
	}
	free["b1"] = 0
	for _, r := range []*csi.TopologyRequirement{nil, zone("b"), zone("a", "b")} {
		again, err := m.CreateVolume(t.Context(), in("v", r))
		if err != nil || !reflect.DeepEqual(again, first) {
			t.Errorf("%v: %+v, %v; first %+v", r, again, err, first)
		}
	}
	_, err = m.CreateVolume(t.Context(), in("v", zone("a")))
	wantCode(t, err, codes.AlreadyExists, "accessibility_requirements")
	if got := poolOf(t, dir, "v"); got != "b1" {
		t.Errorf("in %q", got)
	}
}

// A pool that is not there may have any name that the others do not have, and any
// ID: neither is it created again, nor is its volume said to be gone. What the other
// pools have is served, and so is everything when the pool is there again.
func TestPoolAway(t *testing.T) {
	dir := t.TempDir()
	m := openTestPools(t, dir, nil)
	ctx := t.Context()
	for name, r := range map[string]*csi.TopologyRequirement{"mine": zone("a"), "away": zone("b")} {
		if _, err := m.CreateVolume(ctx, in(name, r)); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	mountPoint, unmounted := filepath.Join(dir, "b1"), filepath.Join(dir, "unmounted")
	if err := errors.Join(os.Rename(mountPoint, unmounted), os.WriteFile(mountPoint, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	m = openTestPools(t, dir, nil)
	for _, b := range m.here() {
		if err := b.RegisterNode("n", 0, topology.Segments{testZone: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	away := idOnDisk(volumeKind, "away", unmounted)
	for what, op := range map[string]func() error{
		"create again": func() error { _, err := m.CreateVolume(ctx, in("away", zone("a", "b"))); return err },
		"create a new": func() error { _, err := m.CreateVolume(ctx, in("new", zone("a"))); return err },
		"get":          func() error { _, err := m.GetVolume(ctx, away); return err },
		"delete":       func() error { return m.DeleteVolume(ctx, away) },
		"detach":       func() error { return m.DetachVolume(ctx, away, "n") },
		"attach":       func() error { _, err := m.AttachVolume(ctx, away, storage.Attachment{NodeID: "n"}); return err },
		"expand":       func() error { _, err := m.ExpandVolume(ctx, away, storage.CapacityRange{}); return err },
	} {
		t.Run(what, func(t *testing.T) { wantCode(t, op(), codes.Unavailable, "pool b1", mountPoint) })
	}
	v, err := m.CreateVolume(ctx, in("mine", zone("a")))
	mine := v.ID
	wantCode(t, err, codes.OK)
	_, err = m.AttachVolume(ctx, mine, storage.Attachment{NodeID: "n"})
	wantCode(t, errors.Join(err, m.DetachVolume(ctx, mine, "n")), codes.OK)
	_, _, err = m.ListVolumes(ctx, "", 0) // what is in no list is gone, for a CO
	wantCode(t, err, codes.Unavailable, "pool b1")
	if places, err := m.Places(ctx); err != nil || len(places) != 2 {
		t.Errorf("places: %v, %v", places, err)
	}

	if err := errors.Join(os.Remove(mountPoint), os.Rename(unmounted, mountPoint)); err != nil {
		t.Fatal(err)
	}
	_, err = m.CreateVolume(ctx, in("away", zone("a", "b")))
	wantCode(t, err, codes.OK)
	if got := poolOf(t, dir, "away"); got != "b1" {
		t.Errorf("created a second time, in %q", got)
	}
}

// Two pools with one volume, such as a copy of a pool's file system that was mounted
// beside it: which one is meant cannot be known.
func TestVolumeInTwoPools(t *testing.T) {
	dir := t.TempDir()
	m := openTestPools(t, dir, nil)
	if _, err := m.CreateVolume(t.Context(), in("v", zone("b"))); err != nil {
		t.Fatal(err)
	}
	id := m.volumeID("v")
	m.Close()
	for _, ext := range []string{extImage, extMetadata} {
		if err := os.Link(filepath.Join(dir, "b1", "volumes", id+ext), filepath.Join(dir, "a1", "volumes", id+ext)); err != nil {
			t.Fatal(err)
		}
	}
	m = openTestPools(t, dir, nil)
	_, err := m.CreateVolume(t.Context(), in("v", nil))
	wantCode(t, err, codes.DataLoss, "2 pools")
	wantCode(t, m.DeleteVolume(t.Context(), id), codes.DataLoss, "2 pools")
}

// Nodes are records of each pool: one that has not the pool cannot have its volumes,
// nor can one that is elsewhere.
func TestAttachAcrossPools(t *testing.T) {
	m := openTestPools(t, t.TempDir(), nil)
	ctx := t.Context()
	register := func(pool, node string, limit int64) {
		t.Helper()
		if err := m.named(pool).RegisterNode(node, limit, topology.Segments{testZone: node[:1]}); err != nil {
			t.Fatal(err)
		}
	}
	register("a1", "a-node", 2)
	register("b1", "b-node", 0)
	register("b1", "a-node", 2)
	free := map[string]string{}
	for i, r := range []*csi.TopologyRequirement{zone("a"), zone("a"), zone("b")} {
		v, err := m.CreateVolume(ctx, in(fmt.Sprint(i), r))
		if err != nil {
			t.Fatal(err)
		}
		free[fmt.Sprint(i)] = v.ID
	}
	attach := func(id, node string) error {
		_, err := m.AttachVolume(ctx, id, storage.Attachment{NodeID: node})
		return err
	}
	wantCode(t, attach(free["0"], "unknown"), codes.NotFound, `"unknown"`)
	wantCode(t, attach(free["0"], "b-node"), codes.FailedPrecondition, `"b-node"`, "does not have the pool")
	wantCode(t, attach(free["2"], "a-node"), codes.FailedPrecondition, `"a-node"`, testZone)
	wantCode(t, attach(free["2"], "b-node"), codes.OK)
}

// The limit of a node is for all pools together, also after a restart.
func TestAttachLimitAcrossPools(t *testing.T) {
	dir := t.TempDir()
	m := openTestPools(t, dir, nil)
	ctx := t.Context()
	for _, p := range []string{"a1", "a2", "b1"} {
		if err := m.named(p).RegisterNode("n", 2, nil); err != nil {
			t.Fatal(err)
		}
		m.named(p).segments = nil // reached from everywhere
		s := spec(p)
		if _, err := m.named(p).CreateVolume(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	attach := func(name string) error {
		_, err := m.AttachVolume(ctx, m.volumeID(name), storage.Attachment{NodeID: "n"})
		return err
	}
	wantCode(t, attach("a1"), codes.OK)
	wantCode(t, attach("b1"), codes.OK)
	wantCode(t, attach("a2"), codes.ResourceExhausted, "has 2 volumes")
	m.Close()
	m = openTestPools(t, dir, nil)
	for _, b := range m.here() {
		b.segments = nil
	}
	if err := m.DetachVolume(ctx, m.volumeID("a1"), ""); err != nil {
		t.Fatal(err)
	}
	if got := m.named("a1").attached.count("n"); got != 1 {
		t.Errorf("%d are counted, want 1", got)
	}
}

// Pages follow one another over all pools, while volumes come and go.
func TestListAcrossPools(t *testing.T) {
	m := openTestPools(t, t.TempDir(), nil)
	ctx := context.Background()
	want := map[string]bool{}
	for i := range 30 {
		v, err := m.CreateVolume(ctx, in(fmt.Sprint(i), zone([]string{"a", "b"}[i%2])))
		if err != nil {
			t.Fatal(err)
		}
		want[v.ID] = true
	}
	for token, n := "", 0; ; n++ {
		page, next, err := m.ListVolumes(ctx, token, 7)
		if err != nil || len(page) > 7 {
			t.Fatalf("%d volumes, %v", len(page), err)
		}
		for _, v := range page {
			if !want[v.ID] {
				t.Errorf("%s a second time", v.ID)
			}
			delete(want, v.ID)
		}
		// The volume of the token goes, and one comes that need not be listed.
		if err := m.DeleteVolume(ctx, page[len(page)-1].ID); err != nil {
			t.Fatal(err)
		}
		if v, err := m.CreateVolume(ctx, in(fmt.Sprint("new", n), nil)); err != nil {
			t.Fatal(err)
		} else {
			want[v.ID] = true
		}
		if token = next; token == "" {
			break
		}
	}
	for name := range 30 {
		if want[m.volumeID(fmt.Sprint(name))] {
			t.Errorf("%d was there all the time and is in no page", name)
		}
	}
	_, _, err := m.ListVolumes(ctx, "7", 7)
	wantCode(t, err, codes.Aborted)
}

// A request that joins a create in flight gets its volume only if that is what was asked
// for: the place counts too.
func TestJoinedCreateElsewhere(t *testing.T) {
	m := openTestPools(t, t.TempDir(), nil)
	for _, b := range m.here() {
		b.reflink = false
	}
	b := m.named("a1")
	source := filled(t, b, "a")
	began, goOn := make(chan bool), make(chan bool)
	b.step = func(name string) error {
		if name == "truncate image" && began != nil {
			close(began)
			began = nil
			<-goOn
		}
		return nil
	}
	wait := began
	s := from("c", source.ID)
	s.Requirement = zone("a")
	done := make(chan error, 2)
	short, cancel := context.WithCancel(t.Context())
	go func() { _, err := m.CreateVolume(short, s); done <- err }()
	<-wait
	cancel()
	wantCode(t, <-done, codes.DeadlineExceeded)
	for _, r := range []*csi.TopologyRequirement{zone("a"), zone("b")} {
		s.Requirement = r
		go func(s storage.VolumeSpec) { _, err := m.CreateVolume(t.Context(), s); done <- err }(s)
		if r.Requisite[0].Segments[testZone] == "a" {
			continue
		}
		close(goOn)
	}
	var ok, elsewhere int
	for range 2 {
		switch err := <-done; status.Code(err) {
		case codes.OK:
			ok++
		case codes.AlreadyExists:
			elsewhere++
		default:
			t.Error(err)
		}
	}
	if ok != 1 || elsewhere != 1 {
		t.Errorf("%d have it, %d get the answer that it is elsewhere; want one each", ok, elsewhere)
	}
}

// Two controllers that are asked for one name at the same time make one volume.
func TestOneNameByTwoControllers(t *testing.T) {
	dir := t.TempDir()
	both := []*filePools{openTestPools(t, dir, nil), openTestPools(t, dir, nil)}
	for round := range 3 {
		name := fmt.Sprint("v", round)
		ids := make([]string, len(both))
		var wg sync.WaitGroup
		for i, m := range both {
			wg.Go(func() {
				for range 100 { // the CO repeats what it was refused
					v, err := backend{m}.CreateVolume(t.Context(), in(name, zone("a", "b")))
					if ids[i] = v.ID; err == nil {
						return
					}
					wantCode(t, err, codes.Unavailable)
				}
			})
		}
		wg.Wait()
		if ids[0] == "" || ids[0] != ids[1] {
			t.Errorf("%s is %q", name, ids)
		}
		poolOf(t, dir, name)
	}
	found := 0
	for _, p := range []string{"a1", "a2", "b1"} {
		files, _ := filepath.Glob(filepath.Join(dir, p, "volumes", "*"+extImage))
		found += len(files)
	}
	if found != 3 {
		t.Errorf("%d images of 3 volumes", found)
	}
}

// Two controllers on the same pools: the one that is asked has them, and what is promised,
// counted and half copied goes along.
func TestHandover(t *testing.T) {
	dir := t.TempDir()
	one := openTestPools(t, dir, nil)
	two := openTestPools(t, dir, nil) // stands by, and takes nothing from the other
	if len(one.here()) != 3 || len(two.here()) != 0 {
		t.Fatalf("the first has %d pools, the second %d", len(one.here()), len(two.here()))
	}
	ctx := t.Context()
	register := func(m *filePools) {
		for _, b := range m.here() {
			if err := b.RegisterNode("n", 3, topology.Segments{testZone: "a"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	register(one)
	for i, m := range []*filePools{one, two, two, one, two} {
		v, err := backend{m}.CreateVolume(ctx, in(fmt.Sprint(i), zone("a")))
		if err == nil && i < 3 {
			_, err = backend{m}.AttachVolume(ctx, v.ID, storage.Attachment{NodeID: "n"})
		}
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	all, _, err := two.ListVolumes(ctx, "", 0)
	if err != nil || len(all) != 5 {
		t.Errorf("%d volumes, %v", len(all), err)
	}
	_, err = two.AttachVolume(ctx, two.volumeID("3"), storage.Attachment{NodeID: "n"})
	wantCode(t, err, codes.ResourceExhausted, "has 3 volumes")
	if n := one.attached.count("n"); n != 0 || len(one.here()) != 0 {
		t.Errorf("the first one still counts %d volumes, in %d pools", n, len(one.here()))
	}

	// It is not taken away during a call.
	began, goOn := make(chan bool), make(chan bool)
	done := make(chan error)
	go func() {
		done <- backend{two}.do(ctx, func(m *filePools) error {
			began <- true
			<-goOn
			_, err := m.CreateVolume(ctx, in("last", zone("a")))
			return err
		})
	}()
	<-began
	got := make(chan error)
	go func() {
		all, _, err := backend{one}.ListVolumes(ctx, "", 0)
		if err == nil && len(all) != 6 {
			err = fmt.Errorf("%d volumes, want 6", len(all))
		}
		got <- err
	}()
	close(goOn)
	if err := errors.Join(<-done, <-got); err != nil {
		t.Error(err)
	}
	// A stream without a reader holds up neither the other one nor other calls.
	source := filled(t, one.named("a1"), "source")
	snap, err := backend{one}.CreateSnapshot(ctx, storage.SnapshotSpec{Name: "s", SourceVolumeID: source.ID})
	if err != nil {
		t.Fatal(err)
	}
	began, goOn = make(chan bool), make(chan bool)
	go func() {
		first := true
		done <- backend{one}.Blocks(ctx, "", snap.ID, 0, func(int64, int64) error {
			if first {
				began <- true
				<-goOn
			}
			first = false
			return nil
		})
	}()
	<-began
	for _, m := range []*filePools{two, one} {
		if _, _, err := (backend{m}).ListVolumes(ctx, "", 0); err != nil {
			t.Errorf("while a stream is open: %v", err)
		}
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Errorf("the stream: %v", err)
	}
	// What a standby answers without the pools does not take them from the owner.
	_, err = backend{two}.Places(ctx, map[string]string{"unknown": "x"})
	wantCode(t, err, codes.InvalidArgument)
	if err := (backend{two}).CheckMutable(nil); err != nil || len(one.here()) != 3 {
		t.Errorf("%v; the first has %d pools", err, len(one.here()))
	}
}

func TestOvercommit(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	b.space = func() (int64, int64, error) { return 10 * gib, 9 * gib, nil }
	b.limits = policy{overcommit: 2, reserve: 20} // 20 GiB may be promised, 7 are usable
	create := func(name string, size int64) error {
		s := spec(name)
		s.Capacity.Required = size
		_, err := b.CreateVolume(t.Context(), s)
		return err
	}
	free := func() int64 {
		places, err := b.Places(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return places[0].Free
	}
	wantCode(t, create("a", 8*gib), codes.ResourceExhausted, "its reserve")
	wantCode(t, create("a", 7*gib), codes.OK)
	wantCode(t, create("b", 7*gib), codes.OK)
	if free() != 6*gib {
		t.Errorf("%d GiB may be asked for, want 6", free()/gib)
	}
	wantCode(t, create("c", 7*gib), codes.ResourceExhausted, "-overcommit")
	wantCode(t, create("c", 6*gib), codes.OK)
	_, err := b.ExpandVolume(t.Context(), b.volumeID("c"), storage.CapacityRange{Required: 6*gib + 1})
	wantCode(t, err, codes.ResourceExhausted, "-overcommit")
	b2 := reopen(t, b)
	b2.space, b2.limits = b.space, b.limits
	if b = b2; free() != 0 {
		t.Errorf("after a restart %d bytes may be asked for, want none", free())
	}
	if err := b.DeleteVolume(t.Context(), b.volumeID("a")); err != nil {
		t.Fatal(err)
	}
	if free() != 7*gib {
		t.Errorf("after a deletion %d GiB may be asked for, want 7", free()/gib)
	}
	// Nothing new below the reserve; what is there stays.
	b.space = func() (int64, int64, error) { return 10 * gib, gib, nil }
	wantCode(t, create("d", mib*16), codes.ResourceExhausted, "its reserve")
	wantCode(t, create("c", 6*gib), codes.OK)
	if free() != 0 {
		t.Errorf("%d bytes may be asked for, want none", free())
	}
}

// Two concurrent calls do not both get the last of what may be promised.
func TestOvercommitAtOnce(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	b.reflink = false
	source := filled(t, b, "a")
	mustSnap(t, b, "s", source.ID)
	for _, c := range []struct {
		name string
		make func() error
	}{
		{"volume", func() error { _, err := b.CreateVolume(t.Context(), spec("b")); return err }},
		{"clone", func() error { _, err := b.CreateVolume(t.Context(), from("c", source.ID)); return err }},
		{"snapshot", func() error { _, err := b.CreateSnapshot(t.Context(), snap("t", source.ID)); return err }},
		// Last: copies of the source are as large as it is.
		{"expand", func() error {
			_, err := b.ExpandVolume(t.Context(), source.ID, storage.CapacityRange{Required: 2 * gib})
			return err
		}},
	} {
		b.space = func() (int64, int64, error) { return 4 * gib, 4 * gib, nil }
		b.limits = policy{overcommit: float64(b.promised.Load()+gib) / float64(4*gib)}
		asked := false
		b.step = func(step string) error {
			if step == "truncate image" && !asked {
				asked = true
				_, err := b.CreateVolume(t.Context(), spec("late"))
				if status.Code(err) != codes.ResourceExhausted {
					t.Errorf("%s: the other one: %v", c.name, err)
				}
			}
			return nil
		}
		if err := c.make(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		b.step = nil
		if room, err := b.room(); err != nil || room != 0 {
			t.Errorf("%s: %d bytes are left, %v", c.name, room, err)
		}
	}
}

// What is free is in whole MiB, as volumes are.
func TestPlaces(t *testing.T) {
	m := openTestPools(t, t.TempDir(), map[string]int64{"a1": 3*gib + 1, "a2": 2 * gib, "b1": 5 * gib})
	places, err := backend{m}.Places(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []topology.Candidate{
		{Name: "a1", Segments: topology.Segments{testZone: "a"}, Free: 3 * gib},
		{Name: "a2", Segments: topology.Segments{testZone: "a"}, Free: 2 * gib},
		{Name: "b1", Segments: topology.Segments{testZone: "b"}, Free: 5 * gib},
	} {
		if i >= len(places) || !reflect.DeepEqual(places[i], want) {
			t.Fatalf("%d of %+v, want %+v", i, places, want)
		}
	}
}

// Two machines with one node ID would both be allowed to mount a volume.
func TestNodeIDIsTaken(t *testing.T) {
	needLinux(t)
	dir := t.TempDir()
	makePool(t, dir)
	open := func() (*devices, error) { return openTestDevices(t, poolConfig{Name: "default", Dir: dir}) }
	first, err := open()
	if err != nil {
		t.Fatal(err)
	}
	same, err := open() // on this machine, as in a restart that overlaps
	if err != nil {
		t.Fatal(err)
	}
	same.Close()
	lock := filepath.Join(dir, "nodes", "n.lock")
	sound, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{`{"host":"other","boot":"x"}`, "", "{"} {
		write(t, lock, text)
		if _, err := open(); err == nil || !strings.Contains(err.Error(), "another -node-id") {
			t.Errorf("%q: %v", text, err)
		}
	}
	write(t, lock, string(sound))
	next, err := open()
	if err != nil {
		t.Fatal(err)
	}
	wait := next.here()[0].nodeLock
	write(t, lock, `{"host":"other","boot":"x"}`) // another machine was faster
	for wait.check() == nil {
		runtime.Gosched()
	}
	wantCode(t, next.here()[0].CheckImage(mustVolume(t, next.here()[0])), codes.FailedPrecondition, `host "other"`)
	write(t, lock, string(sound))
	for wait.check() != nil {
		runtime.Gosched()
	}
	first.Close()
	<-wait.taken // and not free for another machine
	write(t, lock, `{"host":"other","boot":"x"}`)
	if _, err := open(); err == nil || !strings.Contains(err.Error(), "another -node-id") {
		t.Error(err)
	}
	next.Close()
	if next, err = open(); err != nil { // the kernel dropped the lock with its holder
		t.Fatal(err)
	}
	next.Close()
}

// mustVolume makes a volume without a controller.
func mustVolume(t *testing.T, p *pool) volume {
	t.Helper()
	v := volume{ID: newID(volumeKind, "v"), Name: "v", CapacityBytes: gib, AccessType: "ext4"}
	data, err := encode(v.metadata())
	if err != nil {
		t.Fatal(err)
	}
	write(t, p.file("volumes", v.ID+extMetadata), string(data))
	write(t, p.file("volumes", v.ID+extImage), "")
	if err := os.Truncate(p.file("volumes", v.ID+extImage), gib); err != nil {
		t.Fatal(err)
	}
	return v
}

// A call that waits for a copy does not keep the pools: the copy stops, and the other
// controller resumes it.
func TestHandoverDuringCopy(t *testing.T) {
	dir := t.TempDir()
	one, two := openTestPools(t, dir, nil), openTestPools(t, dir, nil)
	b := one.named("a1")
	b.reflink = false
	source := filled(t, b, "a")
	copying := make(chan bool)
	b.step = func(name string) error {
		if name == "copy" {
			close(copying)
			<-b.life.Done() // a long time
		}
		return nil
	}
	create := func(m *filePools) error {
		_, err := backend{m}.CloneVolume(t.Context(), from("c", source.ID))
		return err
	}
	done := make(chan error, 1)
	go func() { done <- create(one) }()
	<-copying
	if err := create(two); err != nil {
		t.Error(err)
	}
	wantCode(t, <-done, codes.Canceled, "the driver stops")
	wantFilled(t, two.named("a1"), two.volumeID("c"), "a", gib)

	// A call that waits while the pools go does not outlast its context.
	two.calls.Lock()
	defer two.calls.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := two.keep(ctx)
	wantCode(t, err, codes.Aborted)
}
