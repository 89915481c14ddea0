package breaker

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/csikit/csikit/blocking"
)

// The breaker stays open for minBackoff after the first failure, for twice as long after
// each failed trial, and for at most maxBackoff.
const (
	minBackoff = 2 * time.Second
	maxBackoff = time.Minute
)

// server has the calls for one server and the state of its breaker.
type server struct {
	name  string
	used  time.Time // guarded by Group.mu
	calls blocking.Group

	mu        sync.Mutex
	responded time.Time // last time
	failures  int       // since then; 0: the breaker is closed
	since     time.Time // of the first failure
	retryAt   time.Time // no trial before
	trial     *call     // the one in flight
	last      string    // text of the last failure
	jobs      map[string]*Job
}

// admit lets c through if the breaker is closed, or as the trial.
func (s *server) admit(c *call, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusal(now); err != nil {
		return err
	}
	if s.failures > 0 {
		s.trial = c
	}
	return nil
}

// refusal is the error for a call while the breaker is open. It is called with mu held.
func (s *server) refusal(now time.Time) error {
	if s.failures == 0 || s.trial == nil && !now.Before(s.retryAt) {
		return nil
	}
	// Only the text of the last failure: the call that failed may still be in flight, and this
	// one must not appear to be.
	next := "next attempt at " + s.retryAt.UTC().Format(time.RFC3339)
	if s.trial != nil {
		next = "the next attempt is in flight"
	}
	return &Error{Server: s.name, Err: fmt.Errorf("since %s, %s: %s", s.since.UTC().Format(time.RFC3339), next, s.last)}
}

// report closes or opens the breaker, and ends the trial if c is it. c is nil for the progress
// and the end of work, whose calls may have returned.
func (s *server) report(c *call, result outcome, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	trial := c != nil && s.trial == c
	if trial || result == responded {
		s.trial = nil
	}
	switch {
	case result == inconclusive:
	case result == responded:
		s.responded, s.failures, s.last = time.Now(), 0, ""
	case s.failures > 0 && !trial: // of several in flight, only the first one counts
	default:
		now := time.Now()
		if s.failures == 0 {
			s.since = now
		}
		if e := (*Error)(nil); errors.As(err, &e) {
			err = e.Err // what wraps it names one volume
		}
		s.retryAt = now.Add(min(minBackoff<<min(s.failures, 10), maxBackoff))
		s.last = err.Error()
		s.failures++
	}
}

func (s *server) respondedWithin(d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.responded) < d
}

// isIdle reports whether no work of Do is in flight.
func (s *server) isIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.jobs) == 0
}
