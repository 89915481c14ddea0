package registration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// State is where a registration stands.
type State int

const (
	// Stopped is the state before Serve and after it.
	Stopped State = iota
	// Waiting is for the driver: it does not answer yet, or is not ready.
	Waiting
	// Standby is behind another process that serves the socket of this driver:
	// another instance in a rolling update, or node-driver-registrar.
	Standby
	// Blocked means that the socket cannot be made. It is tried again twice a second.
	Blocked
	// Offered means that the socket is there, and kubelet has given no verdict yet.
	Offered
	// Refused means that kubelet asked and did not register the driver. It tries
	// again by itself, after half a second at first and two minutes in the end.
	Refused
	// Registered means that kubelet has registered the driver.
	Registered
)

var stateNames = [...]string{"stopped", "waiting", "standby", "blocked", "offered", "refused", "registered"}

func (s State) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		return fmt.Sprintf("State(%d)", int(s))
	}
	return stateNames[s]
}

// Status is what is known of a registration.
type Status struct {
	State State
	// Since is when the State began. It is zero before Serve.
	Since time.Time
	// Socket is the path of the registration socket as this process sees it.
	Socket string
	// Err says why the driver is not registered: kubelet's words if it refused, else
	// what is waited for and, where a person has to act, what to do. It is nil if
	// State is Registered.
	Err error
	// Asked is how often kubelet has asked who is there, and LastAsked when it did
	// so last. It asks before each attempt to register, and after it was restarted.
	Asked     int
	LastAsked time.Time
	// Offers is how often the socket was put in place: more than once if somebody
	// deleted it, if another instance had it, or by Reregister.
	Offers int
}

// kubeletSilence is when a socket that kubelet does not ask about is taken for one
// that it does not see: it may have backed off on the path for two minutes.
const kubeletSilence = 150 * time.Second

// A situation is a State, since when, and why.
type situation struct {
	state State
	since time.Time
	err   error
}

// Status returns what is known now. It never blocks. The driver is registered as
// far as kubelet has said so: kubelet does not tell when it takes a driver out.
func (r *Registrar) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{Socket: r.path, Asked: r.asked, LastAsked: r.lastAsked, Offers: r.offers}
	now := r.verdict
	if r.obstacle.err != nil {
		now = r.obstacle
	}
	s.State, s.Since, s.Err = now.state, now.since, now.err
	if s.State == Offered {
		if s.Err == nil {
			s.Err = errors.New("kubelet has not registered the driver yet")
		}
		if silent := time.Since(s.Since); silent > kubeletSilence && s.LastAsked.Before(s.Since) {
			s.Err = fmt.Errorf("%w; it has not asked about the socket for %v: check that %s is %s on the host, and that kubelet runs; "+
				"if somebody deleted that directory, kubelet has to be restarted", s.Err, silent.Truncate(time.Second), r.cfg.Dir, r.cfg.KubeletDir)
		}
	}
	return s
}

// Check returns nil if the driver is registered, or stands by behind another
// instance, else why not. It is meant for a readiness probe, from memory and
// without blocking. A standby counts as ready because it can do no more: a
// DaemonSet with maxSurge ends the old pod only once the new one is ready.
//
// It is not for a liveness probe. A restart mends nothing that Serve does not, takes
// the mounts of a driver in user space with it, and a driver that kubelet refuses
// still serves the volumes that are mounted.
func (r *Registrar) Check(context.Context) error {
	s := r.Status()
	if s.State == Registered || s.State == Standby {
		return nil
	}
	return fmt.Errorf("not registered with kubelet (%v): %w", s.State, s.Err)
}

// hinder records what keeps the socket from being in place.
func (r *Registrar) hinder(state State, err error) {
	r.mu.Lock()
	old := r.obstacle
	r.obstacle = situation{state, time.Now(), err}
	if old.state == state {
		r.obstacle.since = old.since
	}
	r.mu.Unlock()
	if old.state != state || text(old.err) != text(err) {
		r.log(state, err)
	}
}

// inPlace records that nothing does.
func (r *Registrar) inPlace() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.obstacle = situation{}
}

// offered records that the socket was put in place, with a remark on the occasion.
func (r *Registrar) offered(remark error) {
	r.mu.Lock()
	r.obstacle = situation{}
	r.verdict = situation{Offered, time.Now(), remark}
	r.offers++
	r.mu.Unlock()
	r.log(Offered, remark)
}

// judged records what kubelet says.
func (r *Registrar) judged(state State, err error) {
	r.mu.Lock()
	old := r.verdict
	r.verdict = situation{state, time.Now(), err}
	if old.state == state {
		r.verdict.since = old.since
	}
	r.mu.Unlock()
	if old.state != state || text(old.err) != text(err) {
		r.log(state, err)
	}
}

func (r *Registrar) log(state State, err error) {
	level := slog.LevelInfo
	switch {
	case state == Refused:
		level = slog.LevelError
	case state == Blocked, state == Offered && err != nil:
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{slog.String("driver", r.cfg.DriverName), slog.String("state", state.String()), slog.String("socket", r.path)}
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	r.cfg.Logger.LogAttrs(context.Background(), level, "registration with kubelet", attrs...)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
