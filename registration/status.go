package registration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// State is the state of a registration.
type State int

const (
	// Stopped is the state before Serve and after it.
	Stopped State = iota
	// AwaitingDriver means that the driver does not answer yet, or is not ready.
	AwaitingDriver
	// Standby means that another process serves the registration socket of this driver:
	// another instance in a rolling update, or node-driver-registrar.
	Standby
	// SocketError means that the socket cannot be created. It is retried twice a second.
	SocketError
	// AwaitingKubelet means that the socket is in place, and kubelet has not reported a
	// registration status yet.
	AwaitingKubelet
	// Rejected means that kubelet called GetInfo and did not register the driver. It
	// retries automatically, with a backoff from 0.5 s to 2 minutes.
	Rejected
	// Registered means that kubelet has registered the driver.
	Registered
)

var stateNames = [...]string{"stopped", "awaiting_driver", "standby", "socket_error", "awaiting_kubelet", "rejected", "registered"}

// String returns the name of the state as it is logged, such as "awaiting_kubelet".
func (s State) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		return fmt.Sprintf("State(%d)", int(s))
	}
	return stateNames[s]
}

// Status is the state of a registration, with its cause and counters.
type Status struct {
	State State
	// Since is the time at which the State began. It is zero before Serve.
	Since time.Time
	// Socket is the path of the registration socket as this process sees it.
	Socket string
	// Err is the reason why the driver is not registered: kubelet's message if it rejected the
	// driver, else the reason for the State and, where an administrator has to act, what
	// to do. It is nil if State is Registered.
	Err error
	// GetInfoCalls is the number of kubelet's calls of GetInfo, and LastGetInfo the time
	// of the last one. kubelet calls it before each attempt to register, and after a
	// restart of kubelet.
	GetInfoCalls int
	LastGetInfo  time.Time
	// SocketsCreated counts how often the socket was created: more than once if it
	// was deleted, if another instance had served it, or by Reregister.
	SocketsCreated int
}

// kubeletSilence is the time after which a socket without a call of GetInfo is reported
// as one that kubelet may not see: until then kubelet may be in a backoff of two minutes.
const kubeletSilence = 150 * time.Second

// logInterval is the least time between two log lines with different errors and the
// same State.
const logInterval = 10 * time.Second

var (
	errStopped         = errors.New("Serve is not running")
	errNoKubeletStatus = errors.New("kubelet has not registered the driver yet")
	errUnwatched       = errors.New("the registration directory was deleted and recreated: kubelet still watches the deleted one; restart kubelet")
	errSocketLost      = errors.New("the registration socket was missing, and kubelet has deregistered the driver: the socket was recreated")
)

// A situation is a State, since when, and why.
type situation struct {
	state State
	since time.Time
	err   error
}

// Status returns the current status. It never blocks. Registered means that kubelet
// reported it last: kubelet does not report that it deregisters a driver.
func (r *Registrar) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.current()
	return Status{State: now.state, Since: now.since, Socket: r.path, Err: now.err,
		GetInfoCalls: r.getInfoCalls, LastGetInfo: r.lastGetInfo, SocketsCreated: r.socketsCreated}
}

// current returns the situation as Status shows it. r.mu is held.
func (r *Registrar) current() situation {
	if r.obstacle.err != nil {
		return r.obstacle
	}
	now := r.kubeletStatus
	if now.state != AwaitingKubelet {
		return now
	}
	if now.err == nil {
		now.err = errNoKubeletStatus
	}
	if r.getInfoSocket != r.socketsCreated && time.Since(now.since) > kubeletSilence {
		now.err = fmt.Errorf("%s; it has not called the socket for more than %v: check that %s is %s on the host, and that kubelet runs; "+
			"if that directory was deleted and recreated, restart kubelet", text(now.err), kubeletSilence, r.cfg.Dir, r.cfg.KubeletDir)
	}
	return now
}

// Check returns nil if the driver is registered, or stands by behind another
// instance, else the reason why not. It is meant for a readiness probe: it answers from
// memory and never blocks. Standby counts as ready, because a DaemonSet with maxSurge
// ends the old pod only once the new one is ready.
//
// It is not for a liveness probe. A restart repairs nothing that Serve does not, it
// ends the mounts of a driver in user space, and a driver that kubelet rejects
// still serves the volumes that are mounted.
func (r *Registrar) Check(context.Context) error {
	s := r.Status()
	if s.State == Registered || s.State == Standby {
		return nil
	}
	return fmt.Errorf("not registered with kubelet (%v): %w", s.State, s.Err)
}

// setObstacle records what keeps the socket from being in place.
func (r *Registrar) setObstacle(state State, err error) {
	r.change(func() {
		since := time.Now()
		if r.obstacle.state == state && r.obstacle.err != nil {
			since = r.obstacle.since
		}
		r.obstacle = situation{state, since, err}
	})
}

// clearObstacle records that the socket is in place.
func (r *Registrar) clearObstacle() {
	r.change(func() { r.obstacle = situation{} })
}

// recordSocketCreated records that the socket was put in place. reason is why it had
// to be, or nil.
func (r *Registrar) recordSocketCreated(reason error) {
	r.change(func() {
		if errors.Is(r.kubeletStatus.err, errUnwatched) && r.getInfoSocket != r.socketsCreated {
			reason = errUnwatched // still
		}
		r.obstacle = situation{}
		r.kubeletStatus = situation{AwaitingKubelet, time.Now(), reason}
		r.socketsCreated++
		r.logged = situation{} // log each creation
	})
}

// recordKubeletStatus records what kubelet reports in NotifyRegistrationStatus.
func (r *Registrar) recordKubeletStatus(state State, err error) {
	r.change(func() {
		// kubelet calls GetInfo before it reports a status. If it has not called it on this
		// socket, the status is about the previous one, which it will deregister.
		if r.getInfoSocket != r.socketsCreated {
			return
		}
		since := time.Now()
		if r.kubeletStatus.state == state {
			since = r.kubeletStatus.since
		}
		r.kubeletStatus = situation{state, since, err}
	})
}

// change applies f, and logs a change of the Status. A new error in the same State is
// rate limited, because it may contain a time or the number of a request.
func (r *Registrar) change(f func()) {
	r.mu.Lock()
	f()
	now := r.current()
	changed := now.state != r.logged.state ||
		text(now.err) != text(r.logged.err) && time.Since(r.logged.since) >= logInterval
	if changed {
		r.logged = situation{now.state, time.Now(), now.err}
	}
	r.mu.Unlock()
	if changed {
		r.log(now.state, now.err)
	}
}

func (r *Registrar) log(state State, err error) {
	level := slog.LevelInfo
	switch {
	case state == Rejected:
		level = slog.LevelError
	case state == SocketError, state == AwaitingKubelet && !errors.Is(err, errNoKubeletStatus):
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{slog.String("driver", r.cfg.DriverName), slog.String("state", state.String()), slog.String("socket", r.path)}
	if err != nil {
		key := "reason"
		if level > slog.LevelInfo {
			key = "error"
		}
		attrs = append(attrs, slog.String(key, err.Error()))
	}
	r.cfg.Logger.LogAttrs(context.Background(), level, "registration with kubelet", attrs...)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
