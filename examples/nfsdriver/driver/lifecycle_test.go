package driver_test

import (
	"io"
	"strings"
	"testing"

	"github.com/csikit/csikit/examples/nfsdriver/driver"
	"github.com/csikit/csikit/examples/nfsdriver/drivertest"
	"github.com/csikit/csikit/examples/nfsdriver/memory"
)

// What is wrong with the settings stops the start. An API server that cannot be reached does
// not: the driver serves meanwhile.
func TestStartupTaint(t *testing.T) {
	const serve = "-endpoint unix:///s.sock -node-id n1 "
	t.Setenv("KUBERNETES_SERVICE_PORT", "1")
	for _, test := range []struct{ args, host, want string }{
		{serve + "-mode node -startup-taint a/b", "", "KUBERNETES_SERVICE_HOST"},
		{serve + "-mode controller -startup-taint a/b", "127.0.0.1", "-startup-taint is for the node plugin"},
	} {
		t.Setenv("KUBERNETES_SERVICE_HOST", test.host)
		err := driver.Run(t.Context(), memory.New(), strings.Fields(test.args), func(string) string { return "" }, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.args, err, test.want)
		}
	}
	drivertest.ServeHealth(t, memory.New(), "-mode", "node", "-node-id", "n1", "-startup-taint", "a/b")
}
