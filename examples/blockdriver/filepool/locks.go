package filepool

import (
	"context"
	"math"
	"sync"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/volumelock"
)

// locks let one operation at a time work on an object, or on its name. Their keys are those
// of [keyOf]: a creation by name excludes operations on the ID. The pools of one driver share
// them, since a name may be created in any of them.
//
// Of two processes, or nodes, only one at a time has a pool (see fileBackend), and it
// reads the pool after the other has let it go.
type locks struct{ table volumelock.Table }

// lock waits until no other operation on the object is in flight.
func (l *locks) lock(ctx context.Context, op string, kind volumelock.Kind, id string) (unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, csierr.Errorf(op, id, "%w", err)
	}
	held, err := l.table.AcquireWait(ctx, math.MaxInt64, volumelock.Op{RPC: op}, volumelock.Request{Key: volumelock.Key{Kind: kind, ID: keyOf(id)}})
	if err != nil {
		return nil, csierr.Errorf(op, id, "%w", err)
	}
	return held.Release, nil
}

// tally counts the volumes that each node has attached. The pools of one driver
// share it: the node's limit is for all of them.
type tally struct {
	mu sync.Mutex
	of map[string]int64
}

func (t *tally) add(nodeID string, by int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[string]int64{}
	}
	if t.of[nodeID] += by; t.of[nodeID] == 0 {
		delete(t.of, nodeID)
	}
}

func (t *tally) count(nodeID string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of[nodeID]
}

// jobs counts the work that continues without a caller.
type jobs struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

func (j *jobs) begin() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.closed {
		j.wg.Add(1)
	}
	return !j.closed
}

func (j *jobs) end() { j.wg.Done() }

// close waits until no work is in flight, and lets none begin.
func (j *jobs) close() {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.wg.Wait()
}
