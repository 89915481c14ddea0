package volumelock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csikit/csikit/volumelock"
)

// model is a naive model of a table, which compares each hold with each other.
type model struct {
	holds []*modelHold
	queue []*modelHold // that wait, in order of arrival
}

type modelHold struct {
	on      volumelock.Key // for which it waits
	held    volumelock.Held
	rpc     string
	modes   map[volumelock.Key]volumelock.Mode
	pending chan struct{} // nil: not parked

	result chan waitResult // of one that waits
	cancel context.CancelFunc
}

type waitResult struct {
	held volumelock.Held
	err  error
}

func modesOf(reqs []volumelock.Request) map[volumelock.Key]volumelock.Mode {
	modes := map[volumelock.Key]volumelock.Mode{}
	for _, r := range reqs {
		if have, ok := modes[r.Key]; !ok || have == volumelock.Shared {
			modes[r.Key] = r.Mode
		}
	}
	return modes
}

func equalModes(a, b map[volumelock.Key]volumelock.Mode) bool {
	if len(a) != len(b) {
		return false
	}
	for k, m := range a {
		if have, ok := b[k]; !ok || have != m {
			return false
		}
	}
	return true
}

func (h *modelHold) excludes(rpc string, modes map[volumelock.Key]volumelock.Mode, k volumelock.Key) bool {
	if h.pending != nil && (strings.HasPrefix(rpc, "NodeUn") || rpc == h.rpc && equalModes(modes, h.modes)) {
		return false
	}
	have, ok := h.modes[k]
	mode, want := modes[k]
	return ok && want && (have == volumelock.Exclusive || mode == volumelock.Exclusive)
}

// blocked returns the first key that cannot be taken, and whether a parked call is in the
// way on any.
func (m *model) blocked(rpc string, modes map[volumelock.Key]volumelock.Mode) (first volumelock.Key, parked bool) {
	sorted := slices.SortedFunc(maps.Keys(modes), func(a, b volumelock.Key) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
	})
	for _, k := range sorted {
		for _, h := range m.holds {
			if h.excludes(rpc, modes, k) {
				if first == (volumelock.Key{}) {
					first = k
				}
				parked = parked || h.pending != nil
			}
		}
	}
	return first, parked
}

// settle grants keys to the waiters that can have them, and refuses those whose keys are
// parked. It returns the holds that have left the queue, with true if granted.
func (m *model) settle() (left map[*modelHold]bool) {
	left = map[*modelHold]bool{}
	for m.settlePass(left) {
	}
	return left
}

func (m *model) settlePass(left map[*modelHold]bool) (granted bool) {
	var line []*modelHold
	for _, w := range m.queue {
		// Behind one that waits for a key, the first in order.
		var behind volumelock.Key
		for _, before := range line {
			mode, ok := w.modes[before.on]
			if ok && (mode == volumelock.Exclusive || before.modes[before.on] == volumelock.Exclusive) &&
				(behind == (volumelock.Key{}) || cmp.Or(cmp.Compare(before.on.Kind, behind.Kind), cmp.Compare(before.on.ID, behind.ID)) < 0) {
				behind = before.on
			}
		}
		first, parked := m.blocked(w.rpc, w.modes)
		switch w.on = cmp.Or(behind, first); {
		case parked && (behind == (volumelock.Key{}) || len(w.modes) > 1):
			left[w] = false
		case w.on == (volumelock.Key{}):
			m.holds = append(m.holds, w)
			left[w], granted = true, true
		default:
			line = append(line, w)
		}
	}
	m.queue = line
	return granted
}

func (m *model) remove(h *modelHold) {
	m.holds = slices.DeleteFunc(m.holds, func(o *modelHold) bool { return o == h })
}

func (m *model) park(h *modelHold, pending chan struct{}) {
	for _, o := range m.holds {
		if o != h && o.pending == pending && o.rpc == h.rpc && equalModes(o.modes, h.modes) {
			m.remove(h)
			return
		}
	}
	if len(h.modes) == 0 {
		m.remove(h)
		return
	}
	h.pending = pending
}

func (m *model) String() string {
	var lines []string
	for _, h := range m.holds {
		for k, mode := range h.modes {
			lines = append(lines, fmt.Sprint(k, mode, h.rpc, h.pending != nil))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func tableString(t *volumelock.Table) string {
	var lines []string
	for _, e := range t.Snapshot() {
		lines = append(lines, fmt.Sprint(e.Key, e.Mode, e.Op.RPC, e.Parked))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestAgainstModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	for run := range uint64(40) {
		synctest.Test(t, func(t *testing.T) { runModel(t, seed+run) })
	}
}

func runModel(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	rpcs := []string{"NodeStageVolume", "NodePublishVolume", "NodeUnstageVolume", "NodeUnpublishVolume"}
	var (
		table   volumelock.Table
		m       model
		pending []chan struct{}
		ended   []volumelock.Held // must have no say any more
	)
	const steps = 400
	next := volumelock.Op{} // of a caller
	request := func() []volumelock.Request {
		reqs := make([]volumelock.Request, rnd.IntN(4))
		for i := range reqs {
			reqs[i] = ex(volumelock.Kind(1+rnd.IntN(2)), string(rune('a'+rnd.IntN(3))))
			reqs[i].Mode = volumelock.Mode(rnd.IntN(2))
		}
		return reqs
	}
	for step := range steps {
		active := slices.DeleteFunc(slices.Clone(m.holds), func(h *modelHold) bool { return h.pending != nil })
		var did string
		next.RPC = rpcs[rnd.IntN(len(rpcs))]
		switch n := rnd.IntN(12); {
		case n < 4:
			rpc, reqs := next.RPC, request()
			modes := modesOf(reqs)
			h, err := table.Acquire(next, reqs...)
			var busy *volumelock.BusyError
			if err != nil && !errors.As(err, &busy) {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			first, parked := m.blocked(rpc, modes)
			if want := first == (volumelock.Key{}); (err == nil) != want || busy != nil && busy.Parked != parked {
				t.Fatalf("seed %d, step %d: Acquire(%s, %v) = %v, want free %v, parked %v; held:\n%v", seed, step, rpc, reqs, err, want, parked, &m)
			}
			if err == nil {
				m.holds = append(m.holds, &modelHold{held: h, rpc: rpc, modes: modes})
			}
			did = fmt.Sprint("acquire ", rpc, reqs, err)
		case n < 6 && len(m.queue) < 6:
			op, reqs := next, request()
			w := &modelHold{rpc: op.RPC, modes: modesOf(reqs), result: make(chan waitResult, 1)}
			var ctx context.Context
			ctx, w.cancel = context.WithCancel(t.Context())
			go func() {
				h, err := table.AcquireWait(ctx, time.Hour, op, reqs...)
				w.result <- waitResult{h, err}
			}()
			m.queue = append(m.queue, w)
			did = fmt.Sprint("wait ", op.RPC, reqs)
		case n < 7 && len(m.queue) > 0:
			w := m.queue[rnd.IntN(len(m.queue))]
			w.cancel()
			synctest.Wait()
			m.queue = slices.DeleteFunc(m.queue, func(o *modelHold) bool { return o == w })
			if r := <-w.result; r.err == nil {
				t.Fatalf("seed %d, step %d: one that gave up waiting got the keys", seed, step)
			}
			did = fmt.Sprint("give up waiting ", w.rpc, w.modes)
		case n < 9 && len(active) > 0:
			h := active[rnd.IntN(len(active))]
			h.held.Release()
			m.remove(h)
			ended = append(ended, h.held)
			did = fmt.Sprint("release ", h.rpc, h.modes)
		case n < 10 && len(active) > 0:
			h := active[rnd.IntN(len(active))]
			if len(pending) == 0 || rnd.IntN(2) == 0 {
				pending = append(pending, make(chan struct{}))
			}
			c := pending[rnd.IntN(len(pending))]
			h.held.Park(c)
			m.park(h, c)
			ended = append(ended, h.held)
			did = fmt.Sprint("park ", h.rpc, h.modes)
		case len(pending) > 0:
			i := rnd.IntN(len(pending))
			c := pending[i]
			pending = slices.Delete(pending, i, i+1)
			close(c)
			synctest.Wait()
			for _, h := range slices.Clone(m.holds) {
				if h.pending == c {
					m.remove(h)
				}
			}
			did = "end of pending work"
		}
		synctest.Wait()
		for w, got := range m.settle() {
			select {
			case r := <-w.result:
				w.held = r.held
				if (r.err == nil) != got {
					t.Fatalf("seed %d, step %d, after %s: %s %v waited and got %v, want keys: %v", seed, step, did, w.rpc, w.modes, r.err, got)
				}
			default:
				t.Fatalf("seed %d, step %d, after %s: %s %v still waits, want it over with keys: %v", seed, step, did, w.rpc, w.modes, got)
			}
		}
		for _, w := range m.queue {
			if len(w.result) > 0 {
				t.Fatalf("seed %d, step %d, after %s: %s %v waits no more", seed, step, did, w.rpc, w.modes)
			}
		}
		if len(ended) > 0 {
			h := ended[rnd.IntN(len(ended))]
			h.Release()
			h.Park(make(chan struct{}))
		}
		if got, want := tableString(&table), m.String(); got != want {
			t.Fatalf("seed %d, step %d, after %s: table holds\n%s\nwant\n%s", seed, step, did, got, want)
		}
	}
	for _, w := range m.queue { // an earlier waiter may free keys for the next
		w.cancel()
		r := <-w.result
		r.held.Release()
	}
	for _, h := range m.holds {
		h.held.Release()
	}
	for _, c := range pending {
		close(c)
	}
	synctest.Wait()
	mustBeIdle(t, &table)
}
