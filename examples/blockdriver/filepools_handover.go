package main

import (
	"context"
	"errors"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// Two controllers may run on the same pools, such as the replicas of a Deployment
// whose sidecars elect a leader: the one that is asked has the pools. A pool belongs
// to who holds the lock on its marker. Who wants it says so by another lock, and who
// has it gives it up between two calls; copies that are being made stop then, and
// the other one goes on with them. Both locks die with the process.

const (
	wantedName = markerName + ".wanted"

	handoverLook     = 500 * time.Millisecond // how often the holder looks whether somebody else wants the pools
	handoverPatience = 8 * time.Second        // how long a call waits for them
)

var errHeld = errors.New("another controller has the pool")

// openBackendOf opens a pool for a controller. When another one has it, it is asked
// for it, unless this process has only just started: nobody has asked us yet.
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
	for end := time.Now().Add(handoverPatience); ; time.Sleep(handoverLook / 10) {
		b, err := newFileBackendOf(p, m.work, m.log, m.locks, m.attached)
		if !errors.Is(err, errHeld) || time.Now().After(end) {
			return b, err
		}
	}
}

// giveUpWhenWanted gives all pools up when somebody else wants one of them, until ctx
// ends.
func (m *filePools) giveUpWhenWanted(ctx context.Context) {
	tick := time.NewTicker(handoverLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, b := range m.here() {
			if isWanted(b.pool) {
				m.giveUp()
				break
			}
		}
	}
}

func (m *filePools) giveUp() {
	for _, b := range m.here() {
		b.stop() // calls wait for copies, and we for calls
	}
	m.calls.Lock() // no call is under way
	defer m.calls.Unlock()
	m.log.Info("another controller is asked now: it gets the pools")
	if err := m.closeAll(); err != nil {
		m.log.Error("give the pools up", "error", err)
	}
}

// UnaryServerInterceptor keeps the pools during a call.
func (m *filePools) UnaryServerInterceptor(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if !usesPools[info.FullMethod] {
		return handler(ctx, req)
	}
	release, err := m.keep(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return handler(ctx, req)
}

// StreamServerInterceptor does not keep the pools: a client that does not read its
// stream would keep them for ever, and with them all calls that come while the other
// controller waits. A stream holds its images open; one that has not got so far when
// the pools go is UNAVAILABLE.
func (m *filePools) StreamServerInterceptor(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	m.asked.Store(true)
	return handler(srv, stream)
}

// keep waits while the pools are being given up.
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
		return nil, fail("wait for the pools", "", "%w: the pools are being given to another controller", errBusy)
	}
}

// usesPools has the RPCs that a sidecar sends only when it leads.
var usesPools = map[string]bool{
	csi.Controller_CreateVolume_FullMethodName:                   true,
	csi.Controller_DeleteVolume_FullMethodName:                   true,
	csi.Controller_ControllerPublishVolume_FullMethodName:        true,
	csi.Controller_ControllerUnpublishVolume_FullMethodName:      true,
	csi.Controller_ValidateVolumeCapabilities_FullMethodName:     true,
	csi.Controller_ListVolumes_FullMethodName:                    true,
	csi.Controller_GetCapacity_FullMethodName:                    true,
	csi.Controller_CreateSnapshot_FullMethodName:                 true,
	csi.Controller_DeleteSnapshot_FullMethodName:                 true,
	csi.Controller_GetSnapshot_FullMethodName:                    true,
	csi.Controller_ListSnapshots_FullMethodName:                  true,
	csi.Controller_ControllerExpandVolume_FullMethodName:         true,
	csi.Controller_ControllerGetVolume_FullMethodName:            true,
	csi.Controller_ControllerModifyVolume_FullMethodName:         true,
	csi.Controller_ControllerGetVolumeHealth_FullMethodName:      true,
	csi.Controller_ControllerListVolumeHealth_FullMethodName:     true,
	csi.GroupController_CreateVolumeGroupSnapshot_FullMethodName: true,
	csi.GroupController_DeleteVolumeGroupSnapshot_FullMethodName: true,
	csi.GroupController_GetVolumeGroupSnapshot_FullMethodName:    true,
}
