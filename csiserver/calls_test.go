package csiserver

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func methods(us []inFlightCall) (names []string) {
	for _, u := range us {
		names = append(names, u.method)
	}
	return names
}

func TestCalls(t *testing.T) {
	var l calls
	select {
	case <-l.whenIdle():
	default:
		t.Error("not idle at the start")
	}
	a, b, c := &call{method: "a"}, &call{method: "b"}, &call{method: "c"}
	l.add(a)
	l.add(b)
	l.add(c)
	idle, again := l.whenIdle(), l.whenIdle()
	if got := methods(l.running()); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("running %q", got)
	}
	l.remove(b)
	if !l.received(a, "first") || l.received(a, "second") || l.running()[0].request != "first" {
		t.Errorf("requests of %+v", l.running())
	}
	l.remove(a)
	l.add(b)
	if got := methods(l.running()); !slices.Equal(got, []string{"c", "b"}) {
		t.Errorf("running %q", got)
	}
	l.remove(b)
	select {
	case <-idle:
		t.Error("idle with a call running")
	default:
	}
	l.remove(c)
	// Closed by the last call, for everybody who waits.
	<-idle
	<-again
	if got := l.running(); len(got) != 0 {
		t.Errorf("running %+v", got)
	}
}

// Each call is reported once, when its own time has come, and not at all if it
// ends before.
func TestSlowCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type report struct {
			method string
			after  time.Duration
		}
		got := make(chan report, 5)
		begin := time.Now()
		l := calls{slow: 10 * time.Second, report: func(u inFlightCall) { got <- report{u.method, time.Since(begin)} }}
		at := func(d time.Duration, f func(*call), c *call) {
			time.Sleep(time.Until(begin.Add(d)))
			synctest.Wait()
			f(c)
		}
		a, b, c, d, e := &call{method: "a"}, &call{method: "b"}, &call{method: "c"}, &call{method: "d"}, &call{method: "e"}
		at(0, l.add, a)
		at(time.Second, l.add, b)
		at(2*time.Second, l.add, c)
		at(3*time.Second, l.remove, a) // in time
		at(4*time.Second, l.add, d)
		at(13*time.Second, l.remove, b)
		at(13*time.Second, l.remove, d) // in time
		at(40*time.Second, l.remove, c)
		at(50*time.Second, l.add, e) // after an idle time
		at(70*time.Second, l.remove, e)
		want := []report{{"b", 11 * time.Second}, {"c", 12 * time.Second}, {"e", 60 * time.Second}}
		if len(got) != len(want) {
			t.Errorf("%d reports, want %d", len(got), len(want))
		}
		for _, w := range want {
			if r := <-got; r != w {
				t.Errorf("reported %v, want %v", r, w)
			}
		}
	})
}

func TestSlowCallsNever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := calls{report: func(u inFlightCall) { t.Errorf("reported %s", u.method) }}
		c := &call{method: "a"}
		l.add(c)
		time.Sleep(time.Hour)
		l.remove(c)
	})
}
