package filepool

import (
	"context"
	"errors"
	"time"

	"github.com/csikit/csikit/csierr"
)

// Two controllers may run on the same pools, such as the replicas of a Deployment
// whose sidecars elect a leader: the one that is asked has the pools. A pool belongs
// to the process that holds the lock on its marker. Another process requests it by a
// second lock, and the owner releases it between two calls; copies in progress stop
// then, and the new owner resumes them. The kernel drops both locks with the process.

const (
	wantedName = markerName + ".wanted"

	handoverInterval = 500 * time.Millisecond // how often the owner checks whether another process requests the pools
	handoverTimeout  = 8 * time.Second        // how long a call waits for them
)

var errHeld = errors.New("another controller owns the pool")

// openBackendOf opens a pool for a controller. When another one has it, it is requested,
// unless this process has only just started and no call has arrived here.
func (m *filePools) openBackendOf(c poolConfig) (*fileBackend, error) {
	p, err := openPool(c.Dir)
	if err != nil {
		return nil, err
	}
	p.name, p.segments = c.Name, c.Segments
	b, err := newFileBackendOf(p, m.work, m.log, m.locks, m.attached)
	if errors.Is(err, errHeld) && m.asked.Load() {
		b, err = m.awaitHandover(p)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	b.limits = m.limits
	return b, nil
}

func (m *filePools) awaitHandover(p *pool) (*fileBackend, error) {
	unlock, err := lockShared(p, wantedName)
	if err != nil {
		return nil, err
	}
	defer unlock()
	for end := time.Now().Add(handoverTimeout); ; time.Sleep(handoverInterval / 10) {
		b, err := newFileBackendOf(p, m.work, m.log, m.locks, m.attached)
		if !errors.Is(err, errHeld) || time.Now().After(end) {
			return b, err
		}
	}
}

// releaseWhenWanted releases all pools when another process requests one of them, until ctx
// ends.
func (m *filePools) releaseWhenWanted(ctx context.Context) {
	tick := time.NewTicker(handoverInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, b := range m.here() {
			if isWanted(b.pool) {
				m.releaseAll()
				break
			}
		}
	}
}

func (m *filePools) releaseAll() {
	for _, b := range m.here() {
		b.stop() // calls wait for copies, and we for calls
	}
	m.calls.Lock() // no call is in flight
	defer m.calls.Unlock()
	m.log.Info("another controller requests the pools: releasing them")
	if err := m.closeAll(); err != nil {
		m.log.Error("release the pools", "error", err)
	}
}

// keep keeps the pools during a call. It waits while they are being released.
func (m *filePools) keep(ctx context.Context) (release func(), err error) {
	m.asked.Store(true)
	if m.calls.TryRLock() {
		return m.calls.RUnlock, nil
	}
	kept := make(chan struct{})
	go func() {
		m.calls.RLock()
		close(kept)
	}()
	select {
	case <-kept:
		return m.calls.RUnlock, nil
	case <-ctx.Done():
		go func() {
			<-kept
			m.calls.RUnlock()
		}()
		return nil, csierr.Errorf("wait for the pools", "", "%w: the pools are being handed over to another controller", csierr.Busy)
	}
}
