package registration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

const (
	// driverInterval is the first delay between checks of a driver that is not ready yet.
	// It adds to the time until pods can start on a new node. Each further delay is longer
	// by half, up to maxDriverInterval, and random by half: in an outage of their storage,
	// the drivers of a thousand nodes must not ask it ten thousand times a second.
	driverInterval    = 100 * time.Millisecond
	maxDriverInterval = 5 * time.Second
	// interval is the interval between reconciliations of the socket. Each one takes a
	// few system calls and compares the current state only, so that no lost event,
	// clock step or replaced directory can be missed.
	interval = 500 * time.Millisecond
	// stopTimeout bounds calls of kubelet that are in flight when Serve ends.
	stopTimeout = time.Second
	// shutdownTimeout bounds the whole shutdown.
	shutdownTimeout = 2 * time.Second
)

// A Registrar registers a driver with kubelet. Create one with [New]. Its methods
// are safe for concurrent use.
type Registrar struct {
	cfg    Config
	info   encoded // the answer to GetInfo
	served atomic.Bool
	again  chan struct{} // a Reregister that is pending

	// These belong to Serve.
	server       *grpc.Server
	sock         *socket
	driverAnswer chan error             // of the check of the driver that is in flight
	question     atomic.Pointer[string] // that the check waits for

	path string // of the socket, for messages

	mu             sync.Mutex
	obstacle       situation // what keeps the socket from being in place; its err is nil if nothing does
	kubeletStatus  situation // kubelet's status for the last socket
	logged         situation // what was logged last, and when
	getInfoCalls   int
	lastGetInfo    time.Time
	getInfoSocket  int // the number of the socket on which kubelet called GetInfo last
	socketsCreated int

	interval, answerTimeout time.Duration
}

// New returns a Registrar for cfg, or an [*Error] that lists everything that is wrong
// with cfg. It starts no goroutine and touches no file.
func New(cfg Config) (*Registrar, error) {
	if err := cfg.complete(); err != nil {
		return nil, &Error{Op: "new", Driver: cfg.DriverName, Err: err}
	}
	info := pluginInfo{kind: kindCSI, name: cfg.DriverName, endpoint: cfg.KubeletEndpoint, versions: cfg.SupportedVersions}
	return &Registrar{
		cfg:      cfg,
		info:     info.marshal(),
		again:    make(chan struct{}, 1),
		path:     filepath.Join(cfg.Dir, cfg.socketName()),
		obstacle: situation{state: Stopped, err: errStopped},
		logged:   situation{state: Stopped, err: errStopped},

		interval: interval, answerTimeout: answerTimeout,
	}, nil
}

// Serve registers the driver and keeps it registered until ctx ends. It waits for
// the driver to answer on its CSI socket and to be ready, creates the registration
// socket and answers kubelet; later it recreates the socket whenever it is missing.
// Errors meanwhile, a rejection by kubelet included, are logged, reported by
// [Registrar.Status] and retried: they do not end Serve.
//
// When ctx ends, Serve acts on Config.OnShutdown within two seconds and
// returns nil, or an [*Error] if the socket could not be removed, for instance because
// its file system hangs; the next instance replaces it. A socket that belongs to
// another instance by then is not touched. A Registrar serves once; a second Serve
// fails and changes nothing.
//
// Serve may run before the driver serves, and should end before the driver does. A
// driver that shuts down both by one context may let them end in any order, because
// kubelet retries a call that fails to connect.
func (r *Registrar) Serve(ctx context.Context) error {
	if !r.served.CompareAndSwap(false, true) {
		return &Error{Op: "serve", Driver: r.cfg.DriverName, Err: errors.New("this registrar has served already: create a new one")}
	}
	r.server = r.newServer()
	done := make(chan error, 1)
	go func() { done <- r.serve(ctx) }()
	<-ctx.Done()
	select {
	case err := <-done:
		return err
	case <-time.After(shutdownTimeout):
		// The goroutine that hangs cleans up when its system call returns.
		go r.server.Stop()
		return &Error{Op: "stop", Driver: r.cfg.DriverName, Err: fmt.Errorf("registration socket left in place: the file system of %s does not answer", r.cfg.Dir)}
	}
}

// serve is Serve without a bound on the file system.
func (r *Registrar) serve(ctx context.Context) error {
	r.setObstacle(AwaitingDriver, fmt.Errorf("waiting for the driver at %s", r.cfg.Endpoint))
	tick := time.NewTicker(min(driverInterval, r.interval))
	defer tick.Stop()
	ready, again := false, false
	delay := min(driverInterval, r.interval)
	for ctx.Err() == nil {
		select {
		case <-r.again:
			again = true
		default:
		}
		if !ready {
			err := r.driverReady(ctx)
			if ready = err == nil; ready {
				tick.Reset(r.interval)
			} else if ctx.Err() == nil {
				r.setObstacle(AwaitingDriver, err)
				delay = min(delay*3/2, maxDriverInterval)
				tick.Reset(delay/2 + rand.N(delay/2))
			}
		}
		// The first socket also satisfies a Reregister before it.
		if ready && r.reconcile(ctx, again) {
			again = false
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-r.again:
			again = true
		}
	}
	return r.stop()
}

// stop removes the socket, unless it is to be kept, and stops the server.
func (r *Registrar) stop() error {
	var err error
	if r.sock != nil {
		if r.cfg.OnShutdown == Deregister {
			err = r.sock.unlink()
		}
		r.sock.close()
		r.sock = nil
	}
	hard := time.AfterFunc(stopTimeout, r.server.Stop)
	r.server.GracefulStop()
	hard.Stop()
	r.setObstacle(Stopped, errStopped)
	if err != nil {
		return &Error{Op: "stop", Driver: r.cfg.DriverName, Err: err}
	}
	return nil
}

// Reregister makes kubelet register the driver again, and so call NodeGetInfo, after a
// change of the volume limit or the topology. It schedules that and returns without
// waiting. It is a no-op while the socket is not in place, and before and after Serve.
//
// kubelet first deregisters the driver, for one or two seconds. Mounts
// stay, and calls in that gap are retried. For a volume limit only, from
// Kubernetes 1.36 on, nodeAllocatableUpdatePeriodSeconds in CSIDriver works without
// the gap. A topology value is also a label of the node, and kubelet rejects a
// driver whose value differs from the label: an administrator has to delete the label first.
func (r *Registrar) Reregister() {
	select {
	case r.again <- struct{}{}:
	default: // pending already
	}
}
