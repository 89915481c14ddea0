package csiserver

import (
	"strings"
	"testing"
)

func TestCalls(t *testing.T) {
	var c calls
	select {
	case <-c.whenIdle():
	default:
		t.Error("not idle at the start")
	}
	endStage := c.begin(t.Context(), "/csi.v1.Node/NodeStageVolume")
	endProbe := c.begin(t.Context(), "/csi.v1.Identity/Probe")
	idle, again := c.whenIdle(), c.whenIdle()
	if l := strings.Join(c.list(), "; "); !strings.Contains(l, "NodeStageVolume (request_id ") || !strings.Contains(l, "Probe (request_id ") {
		t.Errorf("running %q", l)
	}
	endStage()
	select {
	case <-idle:
		t.Error("idle with a call running")
	default:
	}
	endProbe()
	// Closed by the last call, for everybody who waits.
	<-idle
	<-again
	if l := c.list(); len(l) != 0 {
		t.Errorf("running %q", l)
	}
}
