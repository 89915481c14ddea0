package exportdir

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/nfsdriver/drivertest"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Where the node's kernel has no NFS, /readyz says so from the start, with what to install.
// The plugin stays alive: neither /healthz nor Probe fails. Where it has NFS, also as a module
// that is not loaded yet, the plugin is ready. What the kernel has is what mount(2) answers.
func TestNFSClient(t *testing.T) {
	gate.Root(t)
	filesystems, err := os.ReadFile("/proc/filesystems")
	must(t, err)
	endpoint, get := drivertest.ServeHealth(t, New(), "-mode", "node", "-node-id", "n")
	ready := get("/readyz")
	has := !errors.Is(unix.Mount("127.0.0.1:/", t.TempDir(), "nfs", 0, ""), unix.ENODEV)
	t.Logf("the kernel has NFS: %t; before the driver had asked: %t; /readyz: %s", has, strings.Contains(string(filesystems), "\tnfs\n"), ready)
	if has != (ready == "ok") || !has && (!strings.Contains(ready, "nfs: the node's kernel has no client") || !strings.Contains(ready, "modprobe nfs")) {
		t.Errorf("the kernel has NFS: %t, /readyz: %s", has, ready)
	}
	if body := get("/healthz"); body != "ok" {
		t.Errorf("/healthz: %s", body)
	}
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	answer, err := csi.NewIdentityClient(conn).Probe(t.Context(), &csi.ProbeRequest{})
	if err != nil || answer.GetReady() != nil && !answer.GetReady().GetValue() {
		t.Errorf("Probe: %v, %v", answer, err)
	}
}
