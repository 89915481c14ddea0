package nodelifecycle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func (s *apiServer) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.paths)
}

func (s *apiServer) written() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

func (s *apiServer) taints() []taint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.node.Spec.Taints)
}

// run starts RemoveTaint, which has ended after the test, and returns its error.
func run(t *testing.T, n *Node) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- n.RemoveTaint(t.Context(), agentNotReady.Key) }()
	return done
}

// The taint stays while CSINode does not exist, is empty or lists only other drivers, and goes as
// soon as it lists this one (kubernetes-sigs/aws-efs-csi-driver#1936: it was removed seconds before).
func TestTaintStaysUntilRegistered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(other, agentNotReady, notReady)
		s.drivers = nil
		done := run(t, nodeOf(t, s))
		for _, drivers := range [][]string{nil, {}, {"csi.other.com", driver + ".other"}} {
			s.change(func() { s.drivers = drivers })
			time.Sleep(time.Minute)
			s.change(func() { s.paths = nil })
			time.Sleep(time.Minute) // pods wait, so it is looked up often
			if n := len(s.requests()) / 2; n < 10 || n > 15 {
				t.Errorf("CSINode was read %d times in a minute", n)
			}
			if got := s.taints(); !slices.Contains(got, agentNotReady) || s.written() != 0 {
				t.Fatalf("CSINode has %v: taints %v, %d writes", drivers, got, s.written())
			}
		}
		s.change(func() { s.drivers = []string{"csi.other.com", driver} })
		time.Sleep(registrationPoll * 6 / 5)
		if got, want := s.taints(), []taint{other, notReady}; !slices.Equal(got, want) {
			t.Errorf("taints %v, want %v", got, want)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if s.written() != 1 {
			t.Errorf("%d writes", s.written())
		}
	})
}

// After a reboot CSINode lists the driver from before: the taint stays until the driver
// itself says that it is registered.
func TestTaintStaysAfterReboot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(agentNotReady)
		s.drivers = []string{driver}
		n, start := nodeOf(t, s), time.Now()
		n.cfg.Registered = func(context.Context) error {
			if time.Since(start) < 5*time.Minute {
				return errors.New("not registered with kubelet")
			}
			return nil
		}
		done := run(t, n)
		time.Sleep(5*time.Minute - time.Second)
		if got := s.taints(); len(got) != 1 {
			t.Fatalf("taints %v", got)
		}
		time.Sleep(registrationPoll*6/5 + time.Second)
		if got := s.taints(); len(got) != 0 {
			t.Errorf("taints %v", got)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A node without the taint is not written to, and CSINode is not even read.
func TestAbsentTaintIsNoWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(other, notReady)
		start := time.Now()
		if err := nodeOf(t, s).RemoveTaint(t.Context(), agentNotReady.Key); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d < lateTaint || d > lateTaint+2*slowPoll {
			t.Errorf("it ended after %v", d)
		}
		if slices.ContainsFunc(s.requests(), func(p string) bool { return p != "GET /api/v1/nodes/n1" }) || len(s.requests()) > 40 {
			t.Errorf("%d requests: %v", len(s.requests()), s.requests())
		}
	})
}

// A taint that is added minutes after the driver started is removed too, more than once
// (kubernetes-sigs/aws-ebs-csi-driver#2447).
func TestLateTaint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer()
		s.drivers = []string{driver}
		var refused, removed time.Time
		s.before = func(w http.ResponseWriter, r *http.Request) bool { // refuses each first patch
			switch {
			case r.Method != http.MethodPatch:
				return false
			case refused.After(removed):
				removed = time.Now()
				return false
			}
			refused = time.Now()
			fail(w, http.StatusConflict, "modified")
			return true
		}
		done := run(t, nodeOf(t, s))
		for range 3 {
			time.Sleep(lateTaint - time.Minute)
			s.change(func() { s.node.Spec.Taints = []taint{notReady, agentNotReady} })
			time.Sleep(slowPoll*6/5 + 2*time.Second)
			if got := s.taints(); !slices.Equal(got, []taint{notReady}) {
				t.Fatalf("taints %v", got)
			}
			if d := removed.Sub(refused); d <= 0 || d > 2*time.Second {
				t.Errorf("it was tried again after %v", d)
			}
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Another controller changes the list between reading and writing: the patch is refused, no
// taint is lost, and the next attempt has read the new list
// (kubernetes-sigs/aws-ebs-csi-driver#2575: it was repeated with the old one).
func TestConflict(t *testing.T) {
	for name, meanwhile := range map[string][]taint{
		"shifted":            {notReady, other, agentNotReady},
		"another at its end": {other, notReady},
		"replaced":           {notReady},
		"shorter":            {},
		"another effect":     {other, {agentNotReady.Key, "NoSchedule"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newAPIServer(other, agentNotReady)
				s.drivers = []string{driver}
				s.before = func(_ http.ResponseWriter, r *http.Request) bool {
					if r.Method == http.MethodPatch {
						s.before, s.node.Spec.Taints = nil, slices.Clone(meanwhile)
					}
					return false
				}
				done := run(t, nodeOf(t, s))
				synctest.Wait()
				if got := s.taints(); !slices.Equal(got, meanwhile) {
					t.Errorf("the refused patch left %v", got)
				}
				time.Sleep(2 * time.Second)
				want := slices.DeleteFunc(slices.Clone(meanwhile), func(o taint) bool { return o.Key == agentNotReady.Key })
				if got := s.taints(); !slices.Equal(got, want) {
					t.Errorf("taints %v, want %v", got, want)
				}
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Whatever fails, each request, each time: it converges once the failure is over.
func TestTaintRetries(t *testing.T) {
	failures := map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"refused":      func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(refusedCode); return true },
		"conflict":     func(w http.ResponseWriter, _ *http.Request) bool { fail(w, 409, "modified"); return true },
		"unavailable":  func(w http.ResponseWriter, _ *http.Request) bool { fail(w, 503, "etcd"); return true },
		"unauthorized": func(w http.ResponseWriter, _ *http.Request) bool { fail(w, 401, "Unauthorized"); return true },
		"forbidden":    func(w http.ResponseWriter, _ *http.Request) bool { fail(w, 403, "no"); return true },
		"not JSON":     func(w http.ResponseWriter, r *http.Request) bool { w.Write([]byte("<html>")); return r.Method == "GET" },
		"redirect": func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Location", "https://a/")
			w.WriteHeader(302)
			return true
		},
		"no answer": func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(silentCode); return true },
	}
	requests := []string{"GET /api/v1/nodes/n1", "GET /apis/storage.k8s.io/v1/csinodes/n1", "PATCH /api/v1/nodes/n1"}
	for name, failure := range failures {
		for _, request := range requests {
			if name == "not JSON" && strings.HasPrefix(request, "PATCH") {
				continue // its answer is not read
			}
			t.Run(name+" "+request, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newAPIServer(agentNotReady)
					s.drivers = []string{driver}
					until := time.Now().Add(30 * time.Minute)
					s.before = func(w http.ResponseWriter, r *http.Request) bool {
						return time.Now().Before(until) && r.Method+" "+r.URL.Path == request && failure(w, r)
					}
					done := run(t, nodeOf(t, s))
					time.Sleep(30 * time.Minute)
					if n := len(s.requests()); n > 3*150 || n < 10 {
						t.Errorf("%d requests in 30 minutes", n)
					}
					if s.written() != 0 {
						t.Errorf("%d writes", s.written())
					}
					time.Sleep(slowPoll*6/5 + requestTimeout)
					if got := s.taints(); len(got) != 0 {
						t.Errorf("taints %v", got)
					}
					if err := <-done; err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// An overloaded server says how long to stay away; not longer than two minutes.
func TestRetryAfter(t *testing.T) {
	for header, want := range map[string]time.Duration{"17": 17 * time.Second, "0": time.Second, "": time.Second, "soon": time.Second, "100000": maxRetryAfter} {
		t.Run(header, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newAPIServer()
				var at []time.Time
				s.before = func(w http.ResponseWriter, _ *http.Request) bool {
					at = append(at, time.Now())
					w.Header().Set("Retry-After", header)
					if len(at) == 1 {
						fail(w, http.StatusTooManyRequests, "too many requests")
					}
					return len(at) == 1
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				if err := nodeOf(t, s).RemoveTaint(ctx, agentNotReady.Key); !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				if d := at[1].Sub(at[0]); d < want*4/5 || d > want*6/5 {
					t.Errorf("the next request came after %v, want %v", d, want)
				}
			})
		})
	}
}

// The token is read again for each request, as kubelet replaces it.
func TestTokenRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(agentNotReady)
		n := nodeOf(t, s)
		done := run(t, n)
		time.Sleep(time.Minute)
		s.change(func() { s.tokens, s.drivers = []string{"token-2"}, []string{driver} })
		time.Sleep(time.Minute)
		if got := s.taints(); len(got) != 1 {
			t.Fatalf("taints %v with an expired token", got)
		}
		write(t, n.cfg.TokenFile, "token-2")
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := s.taints(); len(got) != 0 {
			t.Errorf("taints %v", got)
		}
	})
}

// A stopped driver ends it immediately, also in a request that is not answered.
func TestTaintStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(agentNotReady)
		ctx, cancel := context.WithCancel(t.Context())
		n := nodeOf(t, s)
		time.AfterFunc(time.Minute, cancel)
		start := time.Now()
		err := n.RemoveTaint(ctx, agentNotReady.Key)
		var e *Error
		if !errors.Is(err, context.Canceled) || !errors.As(err, &e) || e.Op != "remove taint" || time.Since(start) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

func TestTaintKey(t *testing.T) {
	n := nodeOf(t, newAPIServer())
	for _, key := range []string{"", "/", "a/b/c", "A/b", "a/", "/b", "a:NoExecute", "a=b", "a/b ", strings.Repeat("a", 400)} {
		if err := n.RemoveTaint(t.Context(), key); err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("key %q: %v", key, err)
		}
	}
	for _, name := range []string{driver, "A.B"} {
		if key := DefaultTaint(name); !taintKey.MatchString(key) {
			t.Errorf("%q of %s is no key", key, name)
		}
	}
	if key := DefaultTaint(driver); key != agentNotReady.Key {
		t.Error(key)
	}
}

// Whatever the taints are, the patch removes those with the key and no other; applied to
// another list it removes such taints or is refused.
func FuzzUntaint(f *testing.F) {
	f.Add([]byte{0, 1, 2, 1}, []byte{2, 1})
	f.Add([]byte{1, 4, 1}, []byte{})
	f.Fuzz(func(t *testing.T, before, meanwhile []byte) {
		const key = "b"
		list := func(of []byte) (ts []taint) {
			for _, b := range of[:min(len(of), 50)] {
				ts = append(ts, taint{[]string{"a", key, "b/b"}[b%3], []string{"NoExecute", "NoSchedule"}[b/3%2]})
			}
			return ts
		}
		kept := func(ts []taint) []taint {
			return slices.DeleteFunc(slices.Clone(ts), func(o taint) bool { return o.Key == key })
		}
		read := list(before)
		patch := untaint(read, key)
		if (patch == nil) != (len(kept(read)) == len(read)) {
			t.Fatalf("%v: %v", read, patch)
		}
		text, err := json.Marshal(patch)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := applyPatch(read, text); err != nil || !slices.Equal(got, kept(read)) {
			t.Errorf("%s to %v: %v, %v", text, read, got, err)
		}
		changed := list(meanwhile)
		if got, err := applyPatch(changed, text); err == nil && !slices.Equal(kept(got), kept(changed)) {
			t.Errorf("%s to %v: lost one of %v", text, changed, got)
		}
	})
}

// What the server sends is any text.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"message":"nodes \"n1\" is forbidden"}`), "17")
	f.Add([]byte(`{"spec":{"taints":[{"key":"a","effect":"NoExecute"}],"drivers":[{"name":"csi.example.com"}]},"items":[{}]}`), "")
	f.Add([]byte(`{"spec":null,"metadata":{"deletionTimestamp":null,"continue":""},"items":null}`), "18446744073709551616")
	f.Fuzz(func(t *testing.T, body []byte, header string) {
		if d := retryAfter(header); d < 0 || d > maxRetryAfter {
			t.Errorf("Retry-After %q: %v", header, d)
		}
		if s := reason(body, "500 Internal Server Error"); s == "" || len(s) > 1000 {
			t.Errorf("%q has %d bytes", s, len(s))
		}
		n := nodeOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPatch && !bytes.Contains(body, []byte("taint")) && !bytes.Contains(body, []byte("Taint")) && !bytes.Contains(body, []byte("TAINT")) {
				t.Errorf("a patch of a node without taints")
			}
			if r.URL.Query().Get("continue") == "" {
				w.Write(body)
			}
		}))
		_, _ = n.removeTaint(t.Context(), "a")
		_, _ = n.draining(t.Context())
		_, _ = n.attachments(t.Context())
	})
}
