package filepool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csierr"
)

// poolSet holds what is open of each pool: the node plugin's pools, or the
// controller's backends. A pool that is not there at the start, because its file
// system is not mounted yet, is opened when it is asked for and there.
type poolSet[T interface {
	at() string
	measure() (total, free int64, err error)
}] struct {
	configs []poolConfig
	open    func(poolConfig) (T, error)
	// complete is called when the last pool that was away is open; nil: nothing is.
	complete func()
	work     *blocking.Group // a pool may be on a server that does not answer
	log      *slog.Logger

	mu     sync.Mutex
	opened map[string]T // by name
}

// startTimeout is how long the start waits for pools of which another one is
// there.
const startTimeout = 20 * time.Second

// start opens the pools. One that is there is enough.
func (s *poolSet[T]) start(ctx context.Context) error {
	s.opened = map[string]T{}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := s.openAway(ctx)
	if err != nil && len(s.here()) > 0 {
		s.log.Error("a pool is unavailable; calls for its volumes fail until it is back, and so do creates, whose names it may have", "error", err)
		return nil
	}
	return err
}

// here returns what is open, in the order of the settings.
func (s *poolSet[T]) here() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []T
	for _, c := range s.configs {
		if v, ok := s.opened[c.Name]; ok {
			list = append(list, v)
		}
	}
	return list
}

// probeTimeout is how long a pool may take to answer until it is unreachable.
const probeTimeout = 5 * time.Second

// answers waits until the pool's file system does, be it with an error. Calls that only
// look come again and again, and no lock keeps them from doing so: each would leave a
// thread in the kernel, and here all of them wait for one.
func (s *poolSet[T]) answers(ctx context.Context, v T) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	_, _, err := s.work.Do(ctx, "probe pool "+v.at(), func() (any, error) {
		_, _, _ = v.measure()
		return nil, nil
	})
	return err
}

// silent returns why pools do not answer, by where they are. All are asked concurrently:
// several cost no more than one.
func (s *poolSet[T]) silent(ctx context.Context) map[string]error {
	silent := map[string]error{}
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, v := range s.here() {
		asked.Go(func() {
			if err := s.answers(ctx, v); err != nil {
				mu.Lock()
				defer mu.Unlock()
				silent[v.at()] = err
			}
		})
	}
	asked.Wait()
	return silent
}

// away returns the pools that are not open.
func (s *poolSet[T]) away() []poolConfig {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.opened) == len(s.configs) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(s.configs), func(c poolConfig) bool {
		_, ok := s.opened[c.Name]
		return ok
	})
}

// openAway tries to open the pools that are not open, concurrently, and returns why
// those that still are not cannot be.
func (s *poolSet[T]) openAway(ctx context.Context) error {
	away := s.away()
	errs := make([]error, len(away))
	var wg sync.WaitGroup
	for i, c := range away {
		wg.Go(func() {
			_, _, err := s.work.Do(ctx, "open pool "+c.Dir, func() (any, error) { return nil, s.openOne(c) })
			if err != nil {
				errs[i] = fmt.Errorf("pool %s: %w", c.Name, err)
			}
		})
	}
	wg.Wait()
	if len(away) > 0 && len(s.away()) == 0 && s.complete != nil {
		s.complete()
	}
	return errors.Join(errs...)
}

func (s *poolSet[T]) openOne(c poolConfig) error {
	v, err := s.open(c)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened[c.Name] = v
	s.log.Info("pool opened", "pool", c.Name, "dir", c.Dir, "topology", c.Segments.String())
	return nil
}

// holder returns the one that has the object. While a pool is not there, an object
// that no other has may be in it: that is UNAVAILABLE, and only with all pools at
// hand csierr.NotFound.
func (s *poolSet[T]) holder(ctx context.Context, op, id string, has func(T) bool) (found T, err error) {
	for _, again := range []bool{false, true} {
		have := slices.DeleteFunc(s.here(), func(v T) bool { return !has(v) })
		switch {
		case len(have) > 1:
			return found, csierr.Errorf(op, id, "%d pools have it, %w; remove it from all but one with the driver stopped", len(have), errDamaged)
		case len(have) == 1:
			return have[0], nil
		case len(s.away()) == 0:
			return found, csierr.Errorf(op, id, "%w", csierr.NotFound)
		case again:
			continue
		}
		if err = s.openAway(ctx); err != nil {
			err = csierr.Errorf(op, id, "it may be in an unavailable pool: %s", oneLine(err))
		}
	}
	return found, err
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// drop forgets a pool that was closed.
func (s *poolSet[T]) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.opened, name)
}
