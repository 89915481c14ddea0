package csitest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// A TortureConfig is the length and the kind of a torture run. It ends with Duration or
// Kills, whichever is first; one of them is required.
type TortureConfig struct {
	Duration time.Duration
	Kills    int
	// Seed determines what is done and when the driver is killed. Two runs with one seed
	// differ only by the timing of the machine.
	Seed uint64
	// Workers is the number of concurrent callers, each with its own volumes, snapshots and
	// groups. Default: 4.
	Workers int
	// Progress is called about once a second and at the end, from one goroutine at a
	// time.
	Progress func(TortureProgress)
}

// A TortureProgress is the state of a run.
type TortureProgress struct {
	Elapsed          time.Duration
	Kills            int
	Calls            int
	Interrupted      int // calls whose outcome was unknown, and that were retried
	VolumesCompleted int // volumes that were created and deleted
	Checks           int // times that the data of a volume was compared
	ListComparisons  int // times that all lists were compared with what must be there
}

// Torture kills the driver with -9 at random moments, while workers call every RPC that
// it offers: volumes of all kinds and places, empty, restored and cloned, are created,
// written, snapshotted one by one and in groups, expanded, modified, published again,
// read-only and elsewhere, listed, and deleted. Of a driver of two processes one is killed or
// both. It demands that
//
//   - a call whose outcome is unknown succeeds, or fails with a code that the specification
//     allows, when the CO retries;
//   - what was acknowledged exists, once: volumes with their size and their nodes,
//     snapshots, groups; deleted objects do not reappear;
//   - data that was made durable is read again, and a copy of a volume holds
//     what the volume held at one point in time during the call, the same for all of a group;
//   - in the end everything can be read and deleted, and no mount, device or
//     descriptor is left.
//
// The report has one result.
func Torture(ctx context.Context, target Target, cfg Config, torture TortureConfig) (*Report, error) {
	torture, err := torture.complete()
	if err != nil {
		return nil, err
	}
	t := &tortured{TortureConfig: torture, begin: time.Now(), devices: map[device]bool{}, foreign: map[string]bool{}}
	return checkRules(ctx, target, cfg, []Rule{{
		ID: "torture", Level: Must, Spec: "Timeouts",
		Title: "a driver that is killed at random moments loses nothing and can be retried",
		Why: "The kernel, upgrades and power failures kill drivers at any point. Whatever was in flight, a retry has to succeed, data that was written " +
			"has to stay, and nothing may be left behind.",
		Needs:   needs(createVolume, restartable),
		Timeout: t.Duration + 10*time.Minute,
		check:   t.run,
	}})
}

func (t TortureConfig) complete() (TortureConfig, error) {
	switch {
	case t.Duration <= 0 && t.Kills <= 0:
		return t, errors.New("csitest: a torture needs a duration or a number of kills: without both it would do nothing, and pass")
	case t.Duration <= 0:
		t.Duration = 24 * time.Hour
	}
	if t.Workers < 1 {
		t.Workers = 4
	}
	return t, nil
}

type tortured struct {
	TortureConfig
	begin   time.Time
	until   time.Time
	workers []*worker
	foreign map[string]bool // IDs that were there before

	over                                       atomic.Bool // no new steps
	failed                                     atomic.Bool // no new calls
	kills, lives, checks, interrupted, audited atomic.Int64
	calm                                       sync.RWMutex // held while nothing may be killed
	still                                      sync.RWMutex // held by a step, or to see all at rest

	mu      sync.Mutex
	devices map[device]bool // that volumes were on
}

func (t *tortured) run(c *ruleRun) {
	t.prepare(c)
	killed := make(chan any, 1)
	go func() {
		defer func() {
			p := recover()
			t.end(p)
			killed <- p
		}()
		t.kill(c)
	}()
	defer t.reportProgress(c)
	func() {
		defer func() { // also when a worker has failed
			t.over.Store(true)
			if p := <-killed; p != nil {
				panic(p)
			}
		}()
		t.each(c, (*worker).work)
	}()
	t.reckon(c)
}

// prepare probes what cannot be probed under kills.
func (t *tortured) prepare(c *ruleRun) {
	c.has(mountAccess)
	c.has(blockAccess)
	if c.has(listVolumes) {
		for _, e := range c.list(0) {
			t.foreign[e.GetVolume().GetVolumeId()] = true
		}
	}
	if c.has(listSnapshots) {
		for _, s := range c.listSnapshots(&csi.ListSnapshotsRequest{}) {
			t.foreign[s.GetSnapshotId()] = true
		}
	}
	attached := mostVolumes
	if limit := int(c.run.maxVolumes); limit > 0 {
		t.Workers = min(t.Workers, limit)
		attached = min(attached, limit/t.Workers)
	}
	for i := range t.Workers {
		t.workers = append(t.workers, newWorker(t, c, i, attached))
	}
	t.until = time.Now().Add(t.Duration)
}

// each lets all workers do something, and ends all of it when one fails.
func (t *tortured) each(c *ruleRun, do func(*worker)) {
	c.parallel(len(t.workers), func(i int) {
		defer func() {
			if p := recover(); p != nil {
				t.end(p)
				panic(p)
			}
		}()
		do(t.workers[i])
	})
}

// end ends the steps, and after a panic everything.
func (t *tortured) end(p any) {
	if p != nil {
		t.failed.Store(true)
	}
	t.over.Store(true)
}

const auditEvery = 25 // kills

// kill kills the driver again and again, starts audits, and reports the progress.
func (t *tortured) kill(c *ruleRun) {
	random := rand.New(rand.NewPCG(t.Seed, 0))
	last := time.Now()
	for {
		// Short and long breaks alike: from a crash loop to a second of peace.
		pause := time.Duration(1+random.IntN(2<<random.IntN(10))) * time.Millisecond
		end := time.Now().Add(pause)
		for time.Now().Before(end) && !t.ended(c) {
			time.Sleep(min(time.Until(end), 20*time.Millisecond))
		}
		if t.ended(c) {
			return
		}
		t.strike(c, random)
		if n := t.kills.Add(1); n%auditEvery == 0 {
			t.audit(c, random)
		}
		if time.Since(last) > time.Second {
			last = time.Now()
			t.reportProgress(c)
		}
	}
}

func (t *tortured) ended(c *ruleRun) bool {
	return t.over.Load() || c.ctx.Err() != nil || time.Now().After(t.until) || t.Kills > 0 && int(t.kills.Load()) >= t.Kills
}

// strike kills the driver, or one of its processes, and starts it again; at times also
// while it starts.
func (t *tortured) strike(c *ruleRun, random *rand.Rand) {
	t.calm.Lock()
	defer t.calm.Unlock()
	victims := c.run.processes
	if n := len(victims); n > 1 {
		if one := random.IntN(n + 1); one < n {
			victims = victims[one : one+1]
		}
	}
	times, pause := 1, time.Duration(random.IntN(50))*time.Millisecond
	if random.IntN(8) == 0 {
		times = 2
	}
	for i := range times {
		if i > 0 {
			time.Sleep(pause)
		}
		if err := c.run.killAndStart(c.ctx, victims); err != nil {
			c.fail("the driver starts after kill -9", "%v", err)
		}
	}
	if err := c.run.ready(c.ctx); err != nil && c.ctx.Err() == nil {
		c.fail("the driver is ready within "+readyTimeout.String()+" after kill -9 and start", "%v", err)
	}
}

func (t *tortured) reportProgress(c *ruleRun) {
	if t.Progress != nil {
		t.Progress(TortureProgress{
			Elapsed: time.Since(t.begin), Kills: int(t.kills.Load()), Calls: c.run.record.count(), Interrupted: int(t.interrupted.Load()),
			VolumesCompleted: int(t.lives.Load()), Checks: int(t.checks.Load()), ListComparisons: int(t.audited.Load()),
		})
	}
}

// audit compares the lists with what must be there, while no worker does anything.
func (t *tortured) audit(c *ruleRun, random *rand.Rand) {
	t.still.Lock()
	defer t.still.Unlock()
	if t.failed.Load() {
		return // a worker has failed, and may be anywhere
	}
	t.audited.Add(1)
	page := int32(random.IntN(5))
	if c.has(listVolumes) {
		t.auditVolumes(c, page)
	}
	if c.has(listSnapshots) {
		t.auditSnapshots(c, page)
	}
	for _, w := range t.workers {
		for _, g := range w.groups {
			if a := send(c, c.Group.GetVolumeGroupSnapshot, getGroupRequest(g.made)); !sameIDs(members(a.ok().GetGroupSnapshot()), members(g.made)) {
				a.wrong("the snapshots %v", members(g.made))
			}
		}
	}
}

func (t *tortured) auditVolumes(c *ruleRun, page int32) {
	seen := map[string]*csi.ListVolumesResponse_Entry{}
	for _, e := range c.list(page) {
		if seen[e.GetVolume().GetVolumeId()] != nil {
			c.fail("each volume once in ListVolumes", "volume %s is there twice", e.GetVolume().GetVolumeId())
		}
		seen[e.GetVolume().GetVolumeId()] = e
	}
	for _, w := range t.workers {
		for _, v := range w.volumes {
			e := seen[v.id]
			if e == nil {
				c.fail("volume "+v.id+", which was acknowledged, in ListVolumes", "%d others%s", len(seen), c.history(v.id))
			}
			if got := e.GetVolume().GetCapacityBytes(); got != 0 && got < v.size {
				c.fail(fmt.Sprintf("volume %s of %d bytes, as was acknowledged", v.id, v.size), "%d bytes%s", got, c.history(v.id))
			}
			if got := e.GetStatus().GetPublishedNodeIds(); c.has(publishedNodes) && !sameIDs(got, v.nodes()) {
				c.fail(fmt.Sprintf("volume %s published to %q, as was acknowledged", v.id, v.nodes()), "published_node_ids %q%s", got, c.history(v.id))
			}
			delete(seen, v.id)
		}
	}
	for id := range seen {
		if !t.foreign[id] {
			c.fail("no volume that was deleted or never acknowledged", "volume %s is in ListVolumes%s", id, c.history(id))
		}
	}
}

func (t *tortured) auditSnapshots(c *ruleRun, page int32) {
	seen := map[string]*csi.Snapshot{}
	for _, s := range c.listSnapshots(&csi.ListSnapshotsRequest{MaxEntries: page}) {
		if seen[s.GetSnapshotId()] != nil {
			c.fail("each snapshot once in ListSnapshots", "snapshot %s is there twice", s.GetSnapshotId())
		}
		seen[s.GetSnapshotId()] = s
	}
	for _, w := range t.workers {
		for _, s := range w.snaps() {
			id := s.made.GetSnapshotId()
			switch got := seen[id]; {
			case got == nil:
				c.fail("snapshot "+id+", which was acknowledged, in ListSnapshots", "%d others%s", len(seen), c.history(id))
			case got.GetSourceVolumeId() != s.made.GetSourceVolumeId(), got.GetGroupSnapshotId() != s.made.GetGroupSnapshotId(), !got.GetReadyToUse(),
				!got.GetCreationTime().AsTime().Equal(s.made.GetCreationTime().AsTime()):
				c.fail("snapshot as it was acknowledged: "+requestJSON(s.made), "%s%s", requestJSON(got), c.history(id))
			}
			delete(seen, id)
		}
	}
	for id := range seen {
		if !t.foreign[id] {
			c.fail("no snapshot that was deleted or never acknowledged", "snapshot %s is in ListSnapshots%s", id, c.history(id))
		}
	}
}

// reckon is the end: everything is compared once more, read, and deleted, and nothing
// may be left.
func (t *tortured) reckon(c *ruleRun) {
	t.over.Store(false)
	random := rand.New(rand.NewPCG(t.Seed, 1<<32))
	again := func() {
		c.restart()
		t.audit(c, random)
	}
	again()
	t.each(c, (*worker).readAll)
	again()
	t.each(c, (*worker).deleteAll)
	var busy inventory
	if c.has(driverProcess) && c.has(kernelView) {
		busy = c.run.inventory()
	}
	again()
	if c.has(kernelView) {
		t.nothingLeft(c, busy)
	}
}

func (t *tortured) nothingLeft(c *ruleRun, busy inventory) {
	for _, left := range mounts(c.run.dir) {
		c.error("no mount", "%s", left.point)
	}
	for _, d := range remaining(slices.Collect(maps.Keys(t.devices))...) {
		c.error("no device of a volume that is not staged", "%s", d)
	}
	const much = 8 // more than what a server opens when it is first asked
	if c.has(driverProcess) {
		if grown := busy.grownSince(c.run.inventory(), much); grown != "" {
			c.error("a driver that holds nothing of what is gone", "%s, compared with one that was just started", grown)
		}
	}
}

func sameIDs(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
