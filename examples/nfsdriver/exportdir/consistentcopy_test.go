package exportdir

import (
	"errors"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A server's clock may be set back during a copy, or between two attempts. Changes from
// then cannot be distinguished by their ctime.
func TestConsistentCopyClock(t *testing.T) {
	const length = 10 * time.Minute // of a pass
	for name, test := range map[string]struct {
		set  []time.Duration // ahead of the real time in each pass, and whatever it was
		want []bool          // whether all is copied
	}{
		"right":               {nil, []bool{false, false}},
		"fast":                {[]time.Duration{0, time.Hour}, []bool{false, false}},
		"back":                {[]time.Duration{0, -time.Hour}, []bool{false, true, false}},
		"back, less":          {[]time.Duration{0, -time.Minute, -2 * time.Minute}, []bool{false, true, true, false}},
		"back, in the second": {[]time.Duration{0, 0, -time.Minute}, []bool{false, false, true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				var began time.Time
				clock := func() (time.Time, error) {
					var ahead time.Duration
					if len(test.set) > 0 {
						ahead = test.set[min(n, len(test.set)-1)]
					}
					return time.Now().Add(ahead), nil
				}
				var got []bool
				at, err := copyConsistent(time.Time{}, clock, func(since time.Time) (saw changes, err error) {
					n++
					began = time.Now()
					time.Sleep(length)
					got = append(got, since.Equal(beginningOfTime))
					if since.Equal(beginningOfTime) || n < len(test.want)-1 {
						saw.count = 1
					}
					return saw, nil
				})
				if err != nil {
					t.Fatal(err)
				}
				if len(got) != len(test.want) {
					t.Fatalf("%v, want %v", got, test.want)
				}
				for i := range got {
					if got[i] != test.want[i] {
						t.Errorf("%v, want %v", got, test.want)
					}
				}
				if !at.Equal(began) {
					t.Errorf("the copy is of %v, want %v, when the last pass began", at, began)
				}
			})
		})
	}
}

// An earlier attempt has a later time than now.
func TestConsistentCopyClockBetweenAttempts(t *testing.T) {
	now := time.Now()
	var got []time.Time
	_, err := copyConsistent(now.Add(time.Hour), func() (time.Time, error) { return now, nil }, func(since time.Time) (changes, error) {
		got = append(got, since)
		return changes{}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || !got[0].Equal(beginningOfTime) {
		t.Errorf("what is copied is what changed since %v, want all at first", got)
	}
}

// The file is not being written, and the error must not claim that.
func TestConsistentCopyFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		saw := changes{count: 1, newest: time.Now().Add(time.Hour), name: "future"}
		_, err := copyConsistent(time.Time{}, func() (time.Time, error) { return time.Now(), nil }, func(time.Time) (changes, error) { return saw, nil })
		if !errors.Is(err, storage.ErrInUse) || !strings.Contains(err.Error(), `"future"`) || !strings.Contains(err.Error(), "in the future by the server's clock; correct the clock") {
			t.Error(err)
		}
	})
}
