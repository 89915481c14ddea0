package registration

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

// kubernetes/kubernetes#140754: the driver had its socket in a directory that kubelet
// did not watch, and nothing said so. A kubelet that is slow,
// because it has backed off, is distinguished from that.
func TestStatusOfSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Registrar{}
		r.cfg.Dir, r.cfg.KubeletDir = "/registration", "/var/lib/kubelet/plugins_registry"
		r.cfg.Logger = discard
		r.recordSocketCreated(nil)
		silent := func() bool {
			return strings.Contains(r.Status().Err.Error(), "check that /registration is /var/lib/kubelet/plugins_registry on the host")
		}
		time.Sleep(kubeletSilence)
		if silent() {
			t.Error("too early")
		}
		time.Sleep(time.Second)
		if !silent() {
			t.Errorf("status %+v", r.Status())
		}
		r.getInfo(t.Context())
		if silent() {
			t.Errorf("kubelet has called GetInfo, but: %v", r.Status().Err)
		}
		r.notified(registrationStatus{registered: true})
		if s := r.Status(); s.State != Registered || s.Err != nil {
			t.Errorf("status %+v", s)
		}
		since := r.Status().Since
		time.Sleep(time.Minute)
		r.notified(registrationStatus{registered: true}) // kubelet was restarted
		if s := r.Status(); !s.Since.Equal(since) {
			t.Errorf("since %v, want %v", s.Since, since)
		}
	})
}

// A registration status that arrives while another instance serves the socket is not shown,
// and one from before a temporary obstacle is shown again after it.
func TestStatusBehindAnObstacle(t *testing.T) {
	r := &Registrar{}
	r.cfg.Logger = discard
	r.recordSocketCreated(nil)
	r.getInfo(t.Context())
	r.setObstacle(Standby, &inUseError{"/csi.sock"})
	r.notified(registrationStatus{registered: true})
	if s := r.Status(); s.State != Standby || s.Err == nil {
		t.Errorf("status %+v", s)
	}
	r.clearObstacle()
	if s := r.Status(); s.State != Registered || s.Err != nil {
		t.Errorf("status %+v", s)
	}
}

// A registration by kubelet may take two minutes. If the socket was replaced
// meanwhile, its status is about the previous one, and it calls GetInfo again; or does
// not, if it watches another directory.
func TestStatusOfThePreviousSocket(t *testing.T) {
	for _, registered := range []bool{true, false} {
		r := &Registrar{}
		r.cfg.Logger = discard
		r.recordSocketCreated(nil)
		r.getInfo(t.Context())
		r.recordSocketCreated(errUnwatched)
		r.notified(registrationStatus{registered, "no"})
		if s := r.Status(); s.State != AwaitingKubelet || !errors.Is(s.Err, errUnwatched) {
			t.Errorf("status %+v", s)
		}
		r.recordSocketCreated(nil) // by Reregister; kubelet still does not watch the new directory
		if s := r.Status(); !errors.Is(s.Err, errUnwatched) {
			t.Errorf("status %+v", s)
		}
		r.getInfo(t.Context())
		r.notified(registrationStatus{registered: true})
		if s := r.Status(); s.State != Registered {
			t.Errorf("status %+v", s)
		}
	}
}

type logText struct{ strings.Builder }

// lines returns level, state and error of each line so far.
func (l *logText) lines() (lines []string) {
	for line := range strings.Lines(l.String()) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "level=")
		line = strings.Replace(line, ` msg="registration with kubelet" driver=d state=`, " ", 1)
		lines = append(lines, strings.Replace(line, ` socket=""`, "", 1))
	}
	return lines
}

func newLogText() (*logText, *slog.Logger) {
	l := &logText{}
	return l, slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// Each change of the Status is logged, including recoveries and timeouts, and errors
// with changing text are rate limited.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, logger := newLogText()
		r := &Registrar{logged: situation{state: Stopped, err: errStopped}}
		r.cfg.DriverName, r.cfg.Logger = "d", logger
		expect := func(want ...string) {
			t.Helper()
			got := log.lines()
			log.Reset()
			if len(got) != len(want) {
				t.Errorf("log %q, want %q", got, want)
				return
			}
			for i := range got {
				if !strings.HasPrefix(got[i], want[i]) {
					t.Errorf("log %q, want %q", got[i], want[i])
				}
			}
		}
		for n := range 600 { // a minute
			r.setObstacle(AwaitingDriver, fmt.Errorf("%d of 600 loaded", n))
			time.Sleep(100 * time.Millisecond)
		}
		expect(`INFO awaiting_driver reason="0 of`, `INFO awaiting_driver reason="100 of`, `INFO awaiting_driver reason="200 of`, `INFO awaiting_driver reason="300 of`, `INFO awaiting_driver reason="400 of`, `INFO awaiting_driver reason="500 of`)
		r.recordSocketCreated(nil)
		expect("INFO awaiting_kubelet")
		for range 10 * 60 { // five minutes
			r.clearObstacle()
			time.Sleep(500 * time.Millisecond)
		}
		expect(`WARN awaiting_kubelet error="kubelet has not registered the driver yet; it has not called`)
		r.getInfo(t.Context())
		r.notified(registrationStatus{err: "no"})
		r.notified(registrationStatus{err: "no"})
		expect(`ERROR rejected error="kubelet reports: no"`)
		r.notified(registrationStatus{registered: true})
		r.setObstacle(SocketError, errors.New("too many open files"))
		r.clearObstacle()
		r.clearObstacle()
		expect("INFO registered", `WARN socket_error error="too many open files"`, "INFO registered")
		r.recordSocketCreated(errSocketLost)
		r.recordSocketCreated(errSocketLost)
		expect(`WARN awaiting_kubelet error="the registration socket was missing`, `WARN awaiting_kubelet error="the registration socket was missing`)
	})
}

// The wall clock steps by days, while the monotonic clock does not: the package uses
// only the latter.
func TestClockStepped(t *testing.T) {
	for _, step := range []time.Duration{-48 * time.Hour, 48 * time.Hour} {
		log, logger := newLogText()
		r := &Registrar{}
		r.cfg.DriverName, r.cfg.Logger = "d", logger
		r.recordSocketCreated(nil)
		for _, tt := range []struct {
			ago   time.Duration
			lines int
		}{{kubeletSilence - time.Minute, 1}, {kubeletSilence + time.Second, 2}} {
			// As if the clock had stepped since.
			since := stepped(t, time.Now().Add(-tt.ago), -step)
			r.kubeletStatus.since, r.logged.since = since, since
			r.clearObstacle()
			silent := strings.Contains(r.Status().Err.Error(), "has not called")
			if silent != (tt.ago > kubeletSilence) || strings.Count(log.String(), "\n") != tt.lines {
				t.Errorf("%v ago, and the clock stepped by %v: %v\n%s", tt.ago, step, r.Status().Err, log)
			}
		}
	}
}

// stepped changes the wall clock reading of at, and not its monotonic one.
func stepped(t *testing.T, at time.Time, step time.Duration) time.Time {
	t.Helper()
	// The first word of a Time with both: a flag, 33 bits of seconds, 30 of nanoseconds.
	word := (*uint64)(unsafe.Pointer(&at))
	if *word>>63 != 1 {
		t.Fatal("a Time without a monotonic reading")
	}
	day, before := at.Round(0), at
	*word += uint64(int64(step/time.Second)) << 30
	if got := at.Round(0).Sub(day); got != step || at.Sub(before) != 0 {
		t.Fatalf("the layout of time.Time has changed: stepped by %v and %v", got, at.Sub(before))
	}
	return at
}
