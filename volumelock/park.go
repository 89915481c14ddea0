package volumelock

import "slices"

// Park keeps the keys held until all the channels are closed, for work that is still in
// flight after its call has returned. A nil channel means that nothing is pending, and
// without any other channel Park releases the keys. Park is a no-op after Release or Park.
//
// An Acquire passes parked keys if it has the same Op.RPC, keys and modes, as a
// retry has, or if its Op.RPC is NodeUnpublishVolume or NodeUnstageVolume.
// All others are refused, and calls that pass parked keys exclude each other.
func (h Held) Park(pending ...<-chan struct{}) {
	if !h.lock() {
		return
	}
	pending = slices.DeleteFunc(slices.Clone(pending), over)
	if len(pending) == 0 || h.hold.hasTwin(pending) {
		h.hold.end()
		return
	}
	h.hold.pending = pending
	h.table.unlock(h.shards)
	h.table.serveQueue(h.shards) // calls that wait for these keys are now refused
	go func() {
		for _, p := range pending {
			<-p
		}
		h.table.lock(h.shards)
		h.hold.end()
	}()
}

// passes reports whether h may take keys that other, being parked, holds.
func (h *hold) passes(other *hold) bool {
	return other.parked() && (isTeardown(h.op.RPC) || h.repeats(other))
}

// repeats reports whether h is for the same RPC and the same keys.
func (h *hold) repeats(other *hold) bool {
	if h.op.RPC != other.op.RPC || len(h.slots) != len(other.slots) {
		return false
	}
	for i := range h.slots { // not copied: the rest of a slot belongs to its shard
		if h.slots[i].Request != other.slots[i].Request {
			return false
		}
	}
	return true
}

// hasTwin reports whether an earlier attempt of the same call is parked for at least the
// same work. Without it each retry would park once more, every two minutes while
// a server is unreachable. The shards are locked.
func (h *hold) hasTwin(pending []<-chan struct{}) bool {
	first := &h.slots[0]
	for s := first.next; s != first; s = s.next {
		among := func(p <-chan struct{}) bool { return slices.Contains(s.hold.pending, p) }
		if h.repeats(s.hold) && !slices.ContainsFunc(pending, func(p <-chan struct{}) bool { return !among(p) }) {
			return true
		}
	}
	return false
}

// over reports whether pending is nil or closed.
func over(pending <-chan struct{}) bool {
	if pending == nil {
		return true
	}
	select {
	case <-pending:
		return true
	default:
		return false
	}
}
