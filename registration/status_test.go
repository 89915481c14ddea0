package registration

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
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
