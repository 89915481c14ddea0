package volumelock_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csikit/csikit/volumelock"
)

// model says naively, by comparing everything with everything, what a table does.
type model struct{ holds []*modelHold }

type modelHold struct {
	held    volumelock.Held
	rpc     string
	modes   map[volumelock.Key]volumelock.Mode
	pending chan struct{} // nil: not parked
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

func (m *model) free(rpc string, modes map[volumelock.Key]volumelock.Mode) bool {
	for _, h := range m.holds {
		if h.pending != nil {
			if strings.HasPrefix(rpc, "NodeUn") || rpc == h.rpc && equalModes(modes, h.modes) {
				continue
			}
		}
		for k, mode := range modes {
			if have, ok := h.modes[k]; ok && (have == volumelock.Exclusive || mode == volumelock.Exclusive) {
				return false
			}
		}
	}
	return true
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
	for step := range steps {
		active := slices.DeleteFunc(slices.Clone(m.holds), func(h *modelHold) bool { return h.pending != nil })
		var did string
		switch n := rnd.IntN(10); {
		case n < 6:
			rpc := rpcs[rnd.IntN(len(rpcs))]
			reqs := make([]volumelock.Request, rnd.IntN(4))
			for i := range reqs {
				reqs[i] = ex(volumelock.Kind(1+rnd.IntN(2)), string(rune('a'+rnd.IntN(3))))
				reqs[i].Mode = volumelock.Mode(rnd.IntN(2))
			}
			modes := modesOf(reqs)
			h, err := table.Acquire(volumelock.Op{RPC: rpc}, reqs...)
			var busy *volumelock.BusyError
			if err != nil && !errors.As(err, &busy) {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if want := m.free(rpc, modes); (err == nil) != want {
				t.Fatalf("seed %d, step %d: Acquire(%s, %v) = %v, want free %v; held:\n%v", seed, step, rpc, reqs, err, want, &m)
			}
			if err == nil {
				m.holds = append(m.holds, &modelHold{held: h, rpc: rpc, modes: modes})
			}
			did = fmt.Sprint("acquire ", rpc, reqs, err)
		case n < 8 && len(active) > 0:
			h := active[rnd.IntN(len(active))]
			h.held.Release()
			m.remove(h)
			ended = append(ended, h.held)
			did = fmt.Sprint("release ", h.rpc, h.modes)
		case n < 9 && len(active) > 0:
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
		if len(ended) > 0 {
			h := ended[rnd.IntN(len(ended))]
			h.Release()
			h.Park(make(chan struct{}))
		}
		if got, want := tableString(&table), m.String(); got != want {
			t.Fatalf("seed %d, step %d, after %s: table holds\n%s\nwant\n%s", seed, step, did, got, want)
		}
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
