package main

import (
	"context"
	"sync"
)

// keyLocks lets one operation at a time work on an object, or on its name: a creation
// by name excludes operations on the ID. The pools of one driver share them, since a
// name may be created in any of them.
//
// Of two processes, or nodes, only one at a time has a pool (see fileBackend), and it
// reads the pool after the other has let it go.
type keyLocks struct {
	mu   sync.Mutex
	busy map[string]chan struct{} // closed at the end of the operation
}

// lock waits until no other operation on the object is in flight.
func (l *keyLocks) lock(ctx context.Context, op, id string) (unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, fail(op, id, "%w", err)
	}
	for {
		unlock, other := l.try(id)
		if unlock != nil {
			return unlock, nil
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, fail(op, id, "%w; try again later", errBusy)
		}
	}
}

// try is lock without waiting: it returns unlock, or what is closed when the lock is
// free.
func (l *keyLocks) try(id string) (unlock func(), other <-chan struct{}) {
	key := keyOf(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	if other, held := l.busy[key]; held {
		return nil, other
	}
	done := make(chan struct{})
	if l.busy == nil {
		l.busy = map[string]chan struct{}{}
	}
	l.busy[key] = done
	return func() {
		l.mu.Lock()
		delete(l.busy, key)
		l.mu.Unlock()
		close(done)
	}, nil
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
