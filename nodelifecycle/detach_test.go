package nodelifecycle

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var mine = attachment{"n1", driver, "pvc-1"}

// A node that stays is not waited for, whatever is attached: the driver is being updated.
func TestNoDrainNoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(notReady, other, taint{"DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"})
		s.volumes = []attachment{mine}
		start := time.Now()
		if err := nodeOf(t, s).WaitForDetach(within(t, time.Hour)); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d != 0 || len(s.requests()) != 1 {
			t.Errorf("%v, %v", d, s.requests())
		}
	})
}

// On a node that is emptied it waits for this driver's attachments, and for no others.
func TestWaitsForDetach(t *testing.T) {
	now := "2026-01-01T00:00:00Z"
	for name, drain := range map[string]func(s *apiServer){
		"cordoned":       func(s *apiServer) { s.node.Spec.Unschedulable = true },
		"cordon's taint": func(s *apiServer) { s.node.Spec.Taints = []taint{{drainTaints[0], "NoSchedule"}} },
		"Cluster Autoscaler": func(s *apiServer) {
			s.node.Spec.Taints = []taint{other, {"ToBeDeletedByClusterAutoscaler", "NoSchedule"}}
		},
		"Karpenter":     func(s *apiServer) { s.node.Spec.Taints = []taint{{"karpenter.sh/disrupted", "NoSchedule"}} },
		"being deleted": func(s *apiServer) { s.node.Metadata.DeletionTimestamp = &now },
		"deleted":       func(s *apiServer) { s.node = nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newAPIServer()
				drain(s)
				for i := range pageSize { // what has to be skipped, on several pages
					s.volumes = append(s.volumes, attachment{"n2", driver, fmt.Sprint("a", i)}, attachment{"n1", "csi.other.com", fmt.Sprint("b", i)})
				}
				s.volumes = append(s.volumes, mine)
				start := time.Now()
				time.AfterFunc(time.Minute, func() { s.change(func() { s.volumes = s.volumes[:len(s.volumes)-1] }) })
				if err := nodeOf(t, s).WaitForDetach(within(t, time.Hour)); err != nil {
					t.Error(err)
				}
				if d := time.Since(start); d < time.Minute || d > time.Minute+detachPoll*6/5 {
					t.Errorf("it waited %v", d)
				}
				if n := len(s.requests()); n > 20*8 {
					t.Errorf("%d requests", n)
				}
			})
		})
	}
}

// It is bounded, and reports what is left.
func TestDetachTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer()
		s.node.Spec.Unschedulable = true
		s.volumes = []attachment{mine, {"n1", driver, "pvc-2"}, {"n2", driver, "pvc-3"}}
		start := time.Now()
		err := nodeOf(t, s).WaitForDetach(within(t, 25*time.Second))
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "still attached: pvc-1, pvc-2:") {
			t.Error(err)
		}
		if d := time.Since(start); d != 25*time.Second {
			t.Errorf("it waited %v", d)
		}
	})
}

// A token that is refused for a moment and then accepted ends nothing, however often.
func TestUnauthorizedForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer()
		s.node.Spec.Unschedulable = true
		s.volumes = []attachment{mine}
		start := time.Now()
		s.before = func(w http.ResponseWriter, _ *http.Request) bool {
			refused := time.Since(start)%(2*maxUnauthorized) < maxUnauthorized-time.Second
			if refused {
				fail(w, http.StatusUnauthorized, "Unauthorized")
			}
			return refused
		}
		time.AfterFunc(5*time.Minute, func() { s.change(func() { s.volumes = nil }) })
		if err := nodeOf(t, s).WaitForDetach(within(t, time.Hour)); err != nil || time.Since(start) < 5*time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

func TestCancelledDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer()
		s.node.Spec.Unschedulable = true
		s.volumes = []attachment{mine}
		time.AfterFunc(10*time.Second, func() { s.change(func() { s.node.Spec.Unschedulable = false }) })
		start := time.Now()
		if err := nodeOf(t, s).WaitForDetach(within(t, time.Hour)); err != nil || time.Since(start) > 20*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// Outages are retried, a missing right is not (kubernetes-sigs/aws-ebs-csi-driver#1665: without it
// the hook ran until it was killed).
func TestDetachFailures(t *testing.T) {
	for _, request := range []string{"GET /api/v1/nodes/n1", "GET /apis/storage.k8s.io/v1/volumeattachments"} {
		for _, code := range []int{401, 403, 410, 429, 500, refusedCode} {
			t.Run(fmt.Sprint(request, code), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newAPIServer()
					s.node.Spec.Unschedulable = true
					until := time.Now().Add(20 * time.Second)
					s.before = func(w http.ResponseWriter, r *http.Request) bool {
						if r.Method+" "+r.URL.Path != request || !time.Now().Before(until) {
							return false
						}
						fail(w, code, "failed")
						return true
					}
					n, start := nodeOf(t, s), time.Now()
					err := n.WaitForDetach(within(t, time.Hour))
					d := time.Since(start)
					if code == 403 {
						if statusOf(err) != 403 || d != 0 || !strings.Contains(err.Error(), "grant") {
							t.Errorf("%v after %v", err, d)
						}
						return
					}
					if code == 401 {
						if statusOf(err) != 401 || d < maxUnauthorized || d > maxUnauthorized+detachPoll*6/5 {
							t.Errorf("%v after %v", err, d)
						}
						return
					}
					if err != nil || d < 20*time.Second || d > 20*time.Second+detachPoll*6/5 {
						t.Errorf("%v after %v", err, d)
					}
					s.change(func() { until = time.Now().Add(time.Hour) })
					err = n.WaitForDetach(within(t, 7*time.Second))
					if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "fail") && code != refusedCode {
						t.Error(err)
					}
				})
			})
		}
	}
}
