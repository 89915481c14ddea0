package csitest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// A journal is a ring of records on a disk. Each is on the disk before the next is
// written, and the next of another journal may follow on it.
type journal struct {
	path string
	at   int64
}

const (
	recordSize  = 4096
	ringRecords = 32
	ringSize    = recordSize * ringRecords
)

func record(seq uint64) []byte {
	b := make([]byte, recordSize)
	for i := 0; i+8 <= len(b)-8; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], seq)
	}
	binary.LittleEndian.PutUint32(b[recordSize-4:], crc32.ChecksumIEEE(b[:recordSize-4]))
	return b
}

// newest reads a journal: the last record of which it and all those before are there.
func (j journal) newest() (last uint64, err error) {
	f, err := os.Open(j.path)
	if err != nil {
		return 0, err
	}
	ring := make([]byte, ringSize)
	_, err = io.ReadFull(io.NewSectionReader(f, j.at, ringSize), ring)
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, err
	}
	var seqs [ringRecords]uint64
	for i := range seqs {
		b := ring[i*recordSize : (i+1)*recordSize]
		seq := binary.LittleEndian.Uint64(b)
		if string(b) == string(make([]byte, recordSize)) {
			continue // not yet written
		}
		if string(b) != string(record(seq)) || int(seq%ringRecords) != i {
			return 0, fmt.Errorf("record %d of the ring is torn", i)
		}
		seqs[i], last = seq, max(last, seq)
	}
	for i, seq := range seqs { // each is the newest of its place
		want := last - (last%ringRecords-uint64(i)+ringRecords)%ringRecords
		if want > last {
			want = 0
		}
		if seq != want {
			return 0, fmt.Errorf("record %d is there and record %d, which was written before it, is not", last, want)
		}
	}
	return last, nil
}

// journals are two: a record goes to the first, and then to the second.
type journals [2]journal

// write continues until stop; ready is closed when the rings are full.
func (j *journals) write(r *run, stop *atomic.Bool, ready chan<- struct{}) error {
	var files [2]*os.File
	for i := range j {
		f, err := r.openFile(j[i].path, os.O_RDWR|os.O_CREATE|os.O_SYNC, 0o644)
		if err != nil {
			return err
		}
		defer f.Close() //nolint:errcheck // every write was on the disk
		if _, err := f.WriteAt(make([]byte, ringSize), j[i].at); err != nil {
			return err
		}
		files[i] = f
	}
	for seq := uint64(1); !stop.Load(); seq++ {
		for i := range j {
			if _, err := files[i].WriteAt(record(seq), j[i].at+int64(seq%ringRecords)*recordSize); err != nil {
				return err
			}
		}
		if seq == ringRecords {
			close(ready)
		}
		time.Sleep(time.Millisecond) // a load, not a flood
	}
	return nil
}

// during runs f while the journals are written.
func (c *ruleRun) during(j *journals, f func()) {
	stop, ready, done := new(atomic.Bool), make(chan struct{}), make(chan error, 1)
	go func() { done <- j.write(c.run, stop, ready) }()
	end := func() error { stop.Store(true); return <-done }
	select {
	case <-ready:
	case err := <-done:
		c.fail("a volume that can be written", "%v", err)
	case <-c.ctx.Done():
		c.fail("a volume that can be written within the rule's time", "%v", end())
	}
	var err error
	func() {
		defer func() { err = end() }()
		f()
	}()
	if err != nil {
		c.fail("a volume that can be written while a snapshot is taken", "%v", err)
	}
}

// inOrder demands that copies of the journals are of one point in time.
func (c *ruleRun) inOrder(j journals) {
	first, err := j[0].newest()
	second, err2 := j[1].newest()
	switch err = errors.Join(err, err2); {
	case err != nil:
		c.fail("every record up to the newest", "%v", err)
	case second > first:
		c.fail("no record without those before it", "record %d exists at the second location, but the first ends at record %d, although it was written first", second, first)
	case first > second+1:
		c.fail("every record up to the newest", "record %d exists at the first location, and the second ends at record %d", first, second)
	case first < ringRecords:
		c.fail("what was on the disk before the snapshot", "record %d is the newest, record %d was on the disk", first, ringRecords)
	}
}

// notInUse ends the rule if that is the answer: a driver that cannot copy volumes in use
// at one point in time refuses, and the CO gets no inconsistent copy.
func (c *ruleRun) notInUse(call *Call) {
	if call.Code() == codes.FailedPrecondition {
		c.excuse("no copy is made of what is in use: %s", call.responseText())
	}
}

var consistencyRules = []Rule{
	{
		ID: "snapshot.point-in-time.order", Level: Must, Spec: "CreateSnapshot",
		Title: "a snapshot that is taken while the volume is written is crash-consistent: it shows a single point in time",
		Why: "A database recovers from a point in time, as after a power failure, and not from a mixture of several. Records are written to two " +
			"places alternately, each on the disk before the next, while the snapshot is taken; the snapshot must contain a prefix of the sequence.",
		Needs: needs(createVolume, createSnapshot, nodeService, kernelView),
		check: func(c *ruleRun) {
			v := c.volume().up("a")
			j := journals{{path: v.disk("a")}, {path: v.disk("a"), at: ringSize}}
			for range 3 {
				var snap *csi.Snapshot
				c.during(&j, func() {
					req := v.snapshotRequest()
					c.notInUse(send(c, c.Controller.CreateSnapshot, req).Call)
					snap = c.snapshotOf(req)
				})
				restored := c.volume(from(snapshotSource(snap.GetSnapshotId()))).up("b")
				c.inOrder(journals{{path: restored.disk("b")}, {path: restored.disk("b"), at: ringSize}})
				restored.unpublish("b").unstage().detach()
			}
		},
	},
	{
		ID: "group.point-in-time.order", Level: Must, Spec: "CreateVolumeGroupSnapshot",
		Title: "the snapshots of a group show a single point in time",
		Why: "A database with its log on another volume cannot be restored from two points in time. Records are written alternately to two volumes, " +
			"each on the disk before the next, while the group is taken.",
		Needs: needs(createVolume, createSnapshot, groupService, nodeService, kernelView),
		check: func(c *ruleRun) {
			one, two := c.volume().up("a"), c.volume().up("a2")
			j := journals{{path: one.disk("a")}, {path: two.disk("a2")}}
			for range 3 {
				var g *csi.VolumeGroupSnapshot
				c.during(&j, func() {
					req := c.groupRequest(one, two)
					c.notInUse(send(c, c.Group.CreateVolumeGroupSnapshot, req).Call)
					g = c.groupOf(req)
				})
				var restored [2]*volume
				var copies journals
				for i, v := range []*volume{one, two} {
					restored[i] = c.volume(from(snapshotSource(memberOf(g, v.id).GetSnapshotId()))).up("b")
					copies[i] = journal{path: restored[i].disk("b")}
				}
				c.inOrder(copies)
				for _, v := range restored {
					v.unpublish("b").unstage().detach()
				}
			}
		},
	},
	{
		ID: "clone.point-in-time.order", Level: Should, Spec: "CreateVolume",
		Title: "a clone of a volume that is written is crash-consistent: it shows a single point in time",
		Why:   "A clone that mixes several points in time holds a file system that no crash could have left. Kubernetes clones volumes that are in use.",
		Needs: needs(createVolume, cloneVolume, nodeService, kernelView),
		check: func(c *ruleRun) {
			v := c.volume().up("a")
			j := journals{{path: v.disk("a")}, {path: v.disk("a"), at: ringSize}}
			var clone *volume
			c.during(&j, func() {
				req := c.createRequest()
				from(volumeSource(v.id))(c, req)
				c.notInUse(send(c, c.Controller.CreateVolume, req).Call)
				clone = c.volumeOf(req, step(c, c.Controller.CreateVolume, req).GetVolume())
			})
			clone.up("b")
			c.inOrder(journals{{path: clone.disk("b")}, {path: clone.disk("b"), at: ringSize}})
		},
	},
}
