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
// did not watch, and nothing said so. kubelet that is slow, because it has backed off,
// is told apart from that.
func TestStatusOfSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Registrar{}
		r.cfg.Dir, r.cfg.KubeletDir = "/registration", "/var/lib/kubelet/plugins_registry"
		r.cfg.Logger = discard
		r.offered(nil)
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
			t.Errorf("kubelet has asked, and yet: %v", r.Status().Err)
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

// A verdict that arrives while another instance has the socket is not shown, and
// one that was given before a passing obstacle is shown again after it.
func TestStatusBehindAnObstacle(t *testing.T) {
	r := &Registrar{}
	r.cfg.Logger = discard
	r.offered(nil)
	r.getInfo(t.Context())
	r.hinder(Standby, &aliveError{"/csi.sock"})
	r.notified(registrationStatus{registered: true})
	if s := r.Status(); s.State != Standby || s.Err == nil {
		t.Errorf("status %+v", s)
	}
	r.inPlace()
	if s := r.Status(); s.State != Registered || s.Err != nil {
		t.Errorf("status %+v", s)
	}
}

// kubelet may register a driver for two minutes. If the socket was replaced
// meanwhile, its verdict is on one that is gone, and it asks again; or does not, if
// it watches another directory.
func TestVerdictOnTheSocketBefore(t *testing.T) {
	for _, registered := range []bool{true, false} {
		r := &Registrar{}
		r.cfg.Logger = discard
		r.offered(nil)
		r.getInfo(t.Context())
		r.offered(errUnwatched)
		r.notified(registrationStatus{registered, "no"})
		if s := r.Status(); s.State != Offered || !errors.Is(s.Err, errUnwatched) {
			t.Errorf("status %+v", s)
		}
		r.offered(nil) // by Reregister; kubelet watches the new directory no more for that
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

// The log has each change of the Status, also to the better and by mere silence, and
// no flood of words that are new each time.
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
			r.hinder(Waiting, fmt.Errorf("%d of 600 loaded", n))
			time.Sleep(100 * time.Millisecond)
		}
		expect(`INFO waiting reason="0 of`, `INFO waiting reason="100 of`, `INFO waiting reason="200 of`, `INFO waiting reason="300 of`, `INFO waiting reason="400 of`, `INFO waiting reason="500 of`)
		r.offered(nil)
		expect("INFO offered")
		for range 10 * 60 { // five minutes
			r.inPlace()
			time.Sleep(500 * time.Millisecond)
		}
		expect(`WARN offered error="kubelet has not registered the driver yet; it has not asked`)
		r.getInfo(t.Context())
		r.notified(registrationStatus{err: "no"})
		r.notified(registrationStatus{err: "no"})
		expect(`ERROR refused error="kubelet says: no"`)
		r.notified(registrationStatus{registered: true})
		r.hinder(Blocked, errors.New("too many open files"))
		r.inPlace()
		r.inPlace()
		expect("INFO registered", `WARN blocked error="too many open files"`, "INFO registered")
		r.offered(errGone)
		r.offered(errGone)
		expect(`WARN offered error="the registration socket was gone`, `WARN offered error="the registration socket was gone`)
	})
}

// The clock of the day steps, by days, while the machine's own goes on: nothing that
// is decided here looks at the former.
func TestClockStepped(t *testing.T) {
	for _, step := range []time.Duration{-48 * time.Hour, 48 * time.Hour} {
		log, logger := newLogText()
		r := &Registrar{}
		r.cfg.DriverName, r.cfg.Logger = "d", logger
		r.offered(nil)
		for _, tt := range []struct {
			ago   time.Duration
			lines int
		}{{kubeletSilence - time.Minute, 1}, {kubeletSilence + time.Second, 2}} {
			// As if the clock had stepped since.
			since := stepped(t, time.Now().Add(-tt.ago), -step)
			r.verdict.since, r.logged.since = since, since
			r.inPlace()
			silent := strings.Contains(r.Status().Err.Error(), "has not asked")
			if silent != (tt.ago > kubeletSilence) || strings.Count(log.String(), "\n") != tt.lines {
				t.Errorf("%v ago, and the clock stepped by %v: %v\n%s", tt.ago, step, r.Status().Err, log)
			}
		}
	}
}

// stepped changes what the clock of the day said at t, and not what the machine's own
// did, which time.Time keeps beside it.
func stepped(t *testing.T, at time.Time, step time.Duration) time.Time {
	t.Helper()
	// The first word of a Time with both: a flag, 33 bits of seconds, 30 of nanoseconds.
	word := (*uint64)(unsafe.Pointer(&at))
	if *word>>63 != 1 {
		t.Fatal("a Time without the machine's clock")
	}
	day, before := at.Round(0), at
	*word += uint64(int64(step/time.Second)) << 30
	if got := at.Round(0).Sub(day); got != step || at.Sub(before) != 0 {
		t.Fatalf("time.Time has another form: stepped by %v and %v", got, at.Sub(before))
	}
	return at
}
