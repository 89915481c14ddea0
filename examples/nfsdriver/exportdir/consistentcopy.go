package exportdir

import (
	"fmt"
	"time"

	"github.com/csikit/csikit/examples/nfsdriver/share"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
)

// changes are the changes of a source that a pass has found.
type changes struct {
	count  int       // of files changed since the given time
	newest time.Time // the latest change, by the server's clock
	name   string    // of the file that changed last
}

// origins maps inode numbers of directories in the copy to those of the source, from one
// pass to the next.
type origins map[uint64]uint64

// maxPasses is the number of passes over a source before it counts as in use. All but
// the first only copy what has changed since.
const maxPasses = 5

// copyConsistent calls pass, which copies what has changed since a time, until a whole pass
// finds no change: then nothing changed between the end of the previous pass and the
// beginning of this one, and the copy is consistent as of that point in time: at, by this
// machine's clock. Changes are detected by the server's ctime, which no client can set;
// clock is the server's clock. since is when an interrupted earlier attempt began.
func copyConsistent(since time.Time, clock func() (time.Time, error), pass func(since time.Time) (changes, error)) (at time.Time, err error) {
	var saw changes
	least := since // of the server's clock, unless that is set back
	for n := 1; ; n++ {
		if n > 1 { // both machines' clocks run at nearly the same rate
			least = since.Add(time.Since(at)*99/100 - longestTick)
		}
		began, err := clock()
		if err == nil && (began.Before(since) || began.Before(least)) {
			since = beginningOfTime
		}
		// A change within the same tick could not be distinguished from one during this pass.
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
			return at, inconsistent(saw, clock)
		}
		since = began
	}
}

// inconsistent returns the error for a source that changed in every pass.
func inconsistent(saw changes, clock func() (time.Time, error)) error {
	now, err := clock()
	if err != nil {
		return err
	}
	const or = share.ParamCopyInUse + "=true in the class to accept a copy with files from different times"
	if now.Before(saw.newest) {
		return fmt.Errorf("%w: the ctime of %q, %s, is in the future by the server's clock; correct the clock and then touch the file, or set %s", storage.ErrInUse, saw.name, saw.newest.Format(time.DateTime), or)
	}
	return fmt.Errorf("%w: files changed in each of %d passes, last %q; stop the writers, or set %s", storage.ErrInUse, maxPasses, saw.name, or)
}

// beginningOfTime is used as since if the server's clock was set back: then any file may
// have changed.
var beginningOfTime = time.Unix(0, 0)

// longestTick is the coarsest timestamp granularity of a file system.
const longestTick = 2 * time.Second

// settled returns when no more changes get this ctime: kernels and servers count in ticks,
// and old file systems in whole seconds. The data of a write may arrive later than its ctime;
// later operations are later still, so a copy with part of that write is crash-consistent.
func settled(changed time.Time) time.Time {
	if changed.Nanosecond() == 0 {
		return changed.Add(longestTick)
	}
	return changed.Add(50 * time.Millisecond)
}
