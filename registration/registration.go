package registration

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

const (
	// driverInterval is how often a driver is asked that is not ready yet. All of it
	// adds to the time until pods can start on a new node.
	driverInterval = 100 * time.Millisecond
	// interval is how often the socket is looked at. Looking at a
	// socket that is in place takes a few system calls and no memory of the past, so
	// that nothing can be missed: no event, no clock, no directory that is a new one.
	interval = 500 * time.Millisecond
	// stopTimeout is what a call of kubelet's gets to end when Serve does.
	stopTimeout = time.Second
	// leaveTimeout is what all of the end gets.
	leaveTimeout = 2 * time.Second
)

// A Registrar registers a driver with kubelet. Make one with [New]. Its methods
// may be called concurrently.
type Registrar struct {
	cfg    Config
	info   encoded // the answer to GetInfo
	served atomic.Bool
	again  chan struct{}

	// These belong to Serve.
	server *grpc.Server
	sock   *socket
	asking chan error // the answer of Config.Ready that is outstanding

	path string // of the socket, for people

	mu         sync.Mutex
	obstacle   situation // what keeps the socket from being in place; its err is nil if nothing does
	verdict    situation // kubelet's, on the last offer
	logged     situation // what the log said last, and when
	asked      int
	lastAsked  time.Time
	askedAbout int // the number of the offer about which kubelet asked last
	offers     int

	interval, answerTimeout time.Duration
}

// New makes a Registrar from cfg, or says all that is wrong with cfg in an
// [*Error]. It starts nothing and touches no file.
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
// the driver to answer on its CSI socket and to be ready, makes the registration
// socket and answers kubelet; later it makes the socket again whenever it is gone.
// Whatever goes wrong meanwhile, a refusal by kubelet included, is logged, told by
// [Registrar.Status] and tried again: it does not end Serve.
//
// When ctx ends Serve does what Config.Shutdown says, within two seconds, and
// returns nil. The error, an [*Error], is of a socket that could not be removed,
// even because its file system hangs; the next instance replaces it. A socket that is another instance's by then is
// left alone. A Registrar serves once; a second Serve fails and changes nothing.
//
// Serve may run before the driver serves, and should end before the driver does: a
// driver that shuts down both by one context may let them end in any order, because
// kubelet repeats a call that fails to connect.
func (r *Registrar) Serve(ctx context.Context) error {
	if !r.served.CompareAndSwap(false, true) {
		return &Error{Op: "serve", Driver: r.cfg.DriverName, Err: errors.New("this registrar has served already: make a new one")}
	}
	r.server = r.newServer()
	done := make(chan error, 1)
	go func() { done <- r.serve(ctx) }()
	<-ctx.Done()
	select {
	case err := <-done:
		return err
	case <-time.After(leaveTimeout):
		// What hangs ends some time, and then cleans up after itself.
		go r.server.Stop()
		return &Error{Op: "stop", Driver: r.cfg.DriverName, Err: fmt.Errorf("registration socket left in place: the file system of %s does not answer", r.cfg.Dir)}
	}
}

// serve is Serve, for as long as the file system takes.
func (r *Registrar) serve(ctx context.Context) error {
	r.hinder(Waiting, fmt.Errorf("waiting for the driver at %s", r.cfg.Endpoint))
	look := time.NewTicker(min(driverInterval, r.interval))
	defer look.Stop()
	ready, again := false, false
	for ctx.Err() == nil {
		select {
		case <-r.again:
			again = true
		default:
		}
		if !ready {
			err := r.driverReady(ctx)
			if ready = err == nil; ready {
				look.Reset(r.interval)
			} else if ctx.Err() == nil {
				r.hinder(Waiting, err)
			}
		}
		// A first socket does for what was asked for before it: kubelet asks anyway.
		if ready && r.hold(ctx, again) {
			again = false
		}
		select {
		case <-ctx.Done():
		case <-look.C:
		case <-r.again:
			again = true
		}
	}
	return r.leave()
}

// leave ends what Serve began.
func (r *Registrar) leave() error {
	var err error
	if r.sock != nil {
		if r.cfg.Shutdown == Deregister {
			err = r.sock.unlink()
		}
		r.sock.close()
		r.sock = nil
	}
	hard := time.AfterFunc(stopTimeout, r.server.Stop)
	r.server.GracefulStop()
	hard.Stop()
	r.hinder(Stopped, errStopped)
	if err != nil {
		return &Error{Op: "stop", Driver: r.cfg.DriverName, Err: err}
	}
	return nil
}

// Reregister makes kubelet register the driver anew, and so call NodeGetInfo: for a
// volume limit or a topology that has changed. It only asks for it and returns; if
// the socket is not in place there is nothing to do, and before and after Serve it
// does nothing.
//
// kubelet takes the driver out first, for one or two seconds. What is mounted
// stays, and calls that meet the gap are repeated. For a limit alone, from
// Kubernetes 1.36 on, nodeAllocatableUpdatePeriodSeconds in CSIDriver does without
// the gap. A topology value is also a label of the node, and kubelet refuses a
// driver whose value differs from the label: somebody has to delete that first.
func (r *Registrar) Reregister() {
	select {
	case r.again <- struct{}{}:
	default: // asked for already
	}
}
