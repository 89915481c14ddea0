package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/csikit/csikit/blocking"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The breaker stays open for minBackoff after the first failure, for twice as long after
// each failed trial, and for at most maxBackoff.
const (
	minBackoff = 2 * time.Second
	maxBackoff = time.Minute
)

// admit lets a call pass if the breaker is closed, or as its trial.
func (s *server) admit(now time.Time) (trial bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures == 0 {
		return false, nil
	}
	if s.probing || now.Before(s.retryAt) {
		return false, &unanswered{server: s.name, code: status.Code(s.last),
			err: fmt.Errorf("no response since %s, next attempt at %s: %w", s.since.Format(time.TimeOnly), s.retryAt.Format(time.TimeOnly), s.last)}
	}
	s.probing = true
	return true, nil
}

// report closes or opens the breaker.
func (s *server) report(trial bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if trial {
		s.probing = false
	}
	var open *unanswered
	var full *blocking.LimitError
	switch {
	case errors.Is(err, errInconclusive) || errors.As(err, &full) || errors.Is(err, context.Canceled):
	case !noAnswer(err) && errors.Is(err, context.DeadlineExceeded): // the caller's, before any request to the server
	case !noAnswer(err):
		s.answered, s.failures, s.last = time.Now(), 0, nil
	case s.failures > 0 && !trial: // of several in flight, only the first one counts
	default:
		if s.failures == 0 {
			s.since = time.Now()
		}
		if errors.As(err, &open) {
			err = open // its wrapping names one volume
		} else {
			err = &unanswered{server: s.name, err: err, code: codes.DeadlineExceeded}
		}
		backoff := min(minBackoff<<min(s.failures, 10), maxBackoff)
		s.failures, s.retryAt, s.last = s.failures+1, time.Now().Add(backoff), err
	}
}
