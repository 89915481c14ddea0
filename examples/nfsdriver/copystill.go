package main

import (
	"fmt"
	"time"
)

// changes are what a copy saw of its source.
type changes struct {
	count  int       // what changed since the time that was given
	newest time.Time // the latest change of all, by the server's clock
	name   string    // what changed then
}

// origins tell what the directories of a copy are copies of, by the numbers of their inodes,
// from one pass to the next.
type origins map[uint64]uint64

// maxPasses is how often a source is gone through before it is said to be in use. All but
// the first copy only what changed meanwhile.
const maxPasses = 5

// copyStill calls pass, which copies what has changed since a time, until a whole pass found
// that nothing had: then nothing changed from the end of the one before it to its own
// beginning, and the copy is of that moment: at, by this machine's clock. It tells by the
// times of change that the server gives, which nobody can set; clock is the server's clock.
// since is when an earlier attempt began, which was cut off.
func copyStill(since time.Time, clock func() (time.Time, error), pass func(since time.Time) (changes, error)) (at time.Time, err error) {
	var saw changes
	least := since // of the server's clock, unless that is set back
	for n := 1; ; n++ {
		if n > 1 { // what runs on this machine runs nearly as fast on that one
			least = since.Add(time.Since(at)*99/100 - longestTick)
		}
		began, err := clock()
		if err == nil && (began.Before(since) || began.Before(least)) {
			since = beforeAll
		}
		// What changed this moment could not be told from what changes in this pass.
		for end := time.Now().Add(longestTick); err == nil && began.Before(settled(saw.newest)) && time.Now().Before(end); began, err = clock() {
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil {
			return at, err
		}
		at = time.Now()
		saw, err = pass(since)
		switch {
		case err != nil:
			return at, err
		case n > 1 && saw.count == 0:
			return at, nil
		case n == maxPasses:
			return at, notStill(saw, clock)
		}
		since = began
	}
}

// notStill is why there is no copy of one moment.
func notStill(saw changes, clock func() (time.Time, error)) error {
	now, err := clock()
	if err != nil {
		return err
	}
	const or = paramCopyInUse + "=true in the class for a copy with files of different moments"
	if now.Before(saw.newest) {
		return fmt.Errorf("%w: %q has changed at %s, which by the server's clock is still to come; set the clock right, then touch the file, or say %s", errInUse, saw.name, saw.newest.Format(time.DateTime), or)
	}
	return fmt.Errorf("%w: in each of %d passes something had changed before the next, the latest is %q; stop what writes to it, or say %s", errInUse, maxPasses, saw.name, or)
}

// beforeAll is for the changes since a time that a server's clock has gone back behind: all
// of them may be.
var beforeAll = time.Unix(0, 0)

// longestTick is how coarse the times of a file system are, at the worst.
const longestTick = 2 * time.Second

// settled is when no more changes get this time: kernels and servers count in ticks, and
// old file systems in whole seconds. The data of a write may come later than its time; what
// was done after that write is later still, so a copy with a part of it is as after a crash.
func settled(changed time.Time) time.Time {
	if changed.Nanosecond() == 0 {
		return changed.Add(longestTick)
	}
	return changed.Add(50 * time.Millisecond)
}
