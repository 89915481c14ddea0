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

// logInterval is how often the log tells of new words on an old State, at most.
const logInterval = 10 * time.Second

var (
	errStopped   = errors.New("Serve is not running")
	errNoVerdict = errors.New("kubelet has not registered the driver yet")
	errUnwatched = errors.New("the registration directory was deleted and made anew: kubelet watches the deleted one, and has to be restarted")
	errGone      = errors.New("the registration socket was gone, and kubelet has taken the driver out: it is made again")
)

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
	now := r.now()
	return Status{State: now.state, Since: now.since, Socket: r.path, Err: now.err, Asked: r.asked, LastAsked: r.lastAsked, Offers: r.offers}
}

// now is the situation as it is shown. r.mu is held.
func (r *Registrar) now() situation {
	if r.obstacle.err != nil {
		return r.obstacle
	}
	now := r.verdict
	if now.state != Offered {
		return now
	}
	if now.err == nil {
		now.err = errNoVerdict
	}
	if r.askedAbout != r.offers && time.Since(now.since) > kubeletSilence {
		now.err = fmt.Errorf("%s; it has not asked about the socket for more than %v: check that %s is %s on the host, and that kubelet runs; "+
			"if somebody deleted that directory, kubelet has to be restarted", text(now.err), kubeletSilence, r.cfg.Dir, r.cfg.KubeletDir)
	}
	return now
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
	r.change(func() {
		since := time.Now()
		if r.obstacle.state == state && r.obstacle.err != nil {
			since = r.obstacle.since
		}
		r.obstacle = situation{state, since, err}
	})
}

// inPlace records that nothing does.
func (r *Registrar) inPlace() {
	r.change(func() { r.obstacle = situation{} })
}

// offered records that the socket was put in place, with a remark on the occasion.
func (r *Registrar) offered(remark error) {
	r.change(func() {
		if errors.Is(r.verdict.err, errUnwatched) && r.askedAbout != r.offers {
			remark = errUnwatched // still
		}
		r.obstacle = situation{}
		r.verdict = situation{Offered, time.Now(), remark}
		r.offers++
		r.logged = situation{} // each time
	})
}

// judged records what kubelet says.
func (r *Registrar) judged(state State, err error) {
	r.change(func() {
		// kubelet asks before it judges. If it has not asked about this socket, it speaks
		// of the one before, and will take that out.
		if r.askedAbout != r.offers {
			return
		}
		since := time.Now()
		if r.verdict.state == state {
			since = r.verdict.since
		}
		r.verdict = situation{state, since, err}
	})
}

// change changes what is known, and logs what that does to the Status. Words that
// change while the State does not are not worth a line each: they may hold a time,
// or the number of a request.
func (r *Registrar) change(f func()) {
	r.mu.Lock()
	f()
	now := r.now()
	news := now.state != r.logged.state ||
		text(now.err) != text(r.logged.err) && time.Since(r.logged.since) >= logInterval
	if news {
		r.logged = situation{now.state, time.Now(), now.err}
	}
	r.mu.Unlock()
	if news {
		r.log(now.state, now.err)
	}
}

func (r *Registrar) log(state State, err error) {
	level := slog.LevelInfo
	switch {
	case state == Refused:
		level = slog.LevelError
	case state == Blocked, state == Offered && !errors.Is(err, errNoVerdict):
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
