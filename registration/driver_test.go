package registration

import (
	"strings"
	"testing"
	"testing/synctest"
)

// A check whose goroutine has not run yet when the Status has to say what it waits for.
func TestCheckThatHasNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Registrar{cfg: Config{Endpoint: "/csi.sock"}, driverAnswer: make(chan error)}
		if err := r.driverReady(t.Context()); err == nil || !strings.Contains(err.Error(), "still waiting for the first question") {
			t.Errorf("error is %v", err)
		}
	})
}
