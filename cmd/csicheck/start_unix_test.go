//go:build unix

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"google.golang.org/grpc"
)

// commandLine runs the driver from a shell.
func commandLine(t *testing.T, socket string) string {
	cmd := gate.RoleCommand(t.Context(), "driver", socket)
	var role string
	for _, e := range cmd.Env {
		if strings.HasPrefix(e, "CSIKIT_TEST_ROLE=") {
			role = e
		}
	}
	return role + " " + cmd.Path + " " + socket
}

func sh(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.Command("/bin/sh", "-c", command).CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s", command, err, out)
	}
}

const (
	keepsVolumes = "restart.volumes-kept" // which the driver does not
	noSecrets    = "secrets.not-logged"
)

// -start takes what a shell does, and stops it in the end.
func TestStart(t *testing.T) {
	for name, command := range map[string]string{
		"plain":       "%s",
		"assignments": "GREETING=you %s",
		"list":        "cd / && %s",
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(socketDir(t), "csi.sock")
			out, ok, err := csicheck(t, "-endpoint", "unix://"+socket, "-start", fmt.Sprintf(command, commandLine(t, socket)),
				"-kernel", "no", "-size", "1048576", "-rules", keepsVolumes+","+noSecrets)
			if ok || err != nil {
				t.Fatalf("ok: %v, %v\n%s", ok, err, out)
			}
			has(t, out, "FAILED MUST "+keepsVolumes, "1 rules passed, 1 MUST and 0 SHOULD failed, 0 not run")
			if c, err := net.Dial("unix", socket); err == nil {
				c.Close()
				t.Error("the driver still runs")
			}
		})
	}
	socket := filepath.Join(socketDir(t), "csi.sock")
	_, _, err := csicheck(t, "-endpoint", "unix://"+socket, "-start", "echo last words; exit 3")
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "last words") {
		t.Errorf("a driver that ends immediately: %v", err)
	}
}

// -restart and -log are for a driver that was started elsewhere.
func TestRestart(t *testing.T) {
	dir := socketDir(t)
	socket, log, pid := filepath.Join(dir, "csi.sock"), filepath.Join(dir, "log"), filepath.Join(dir, "pid")
	restart := filepath.Join(dir, "restart")
	script := fmt.Sprintf(`[ ! -e %[1]s ] || kill -9 $(cat %[1]s)
%[2]s >>%[3]s 2>&1 &
echo $! >%[1]s
`, pid, commandLine(t, socket), log)
	if err := os.WriteFile(restart, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	sh(t, "sh "+restart)
	t.Cleanup(func() { sh(t, "kill -9 $(cat "+pid+")") })
	out, ok, err := csicheck(t, "-endpoint", "unix://"+socket, "-restart", "sh "+restart, "-log", log,
		"-kernel", "no", "-size", "1048576", "-rules", keepsVolumes+","+noSecrets)
	if ok || err != nil {
		t.Fatalf("ok: %v, %v\n%s", ok, err, out)
	}
	has(t, out, "FAILED MUST "+keepsVolumes, "1 rules passed, 1 MUST and 0 SHOULD failed, 0 not run")
}

// csicheck … | head cleans up like Ctrl-C.
func TestReaderThatEnds(t *testing.T) {
	started := make(chan bool)
	endpoint, _ := serve(t, func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if r, ok := req.(*csi.NodeUnpublishVolumeRequest); ok && r.GetVolumeId() != "" {
			<-started // so that the output has no reader before all of it is written
		}
		return handler(ctx, req)
	})
	cmd := gate.RoleCommand(t.Context(), "csicheck", "-endpoint", endpoint, "-kernel", "no", "-size", "1048576", "walk", "block")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	close(started)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 { // by a signal it is -1
		t.Errorf("it ended with %v", err)
	}
	// It refuses a driver that has volumes.
	if _, _, err := csicheck(t, "-endpoint", endpoint, "-kernel", "no", "-rules", "identity."); err != nil {
		t.Error(err)
	}
}
