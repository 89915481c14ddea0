//go:build unix

package csitest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
)

// What a driver has left running, with its output still open, is not waited for.
func TestDriverWithADaemon(t *testing.T) {
	dir := socketDir(t)
	socket := filepath.Join(dir, "csi.sock")
	t.Cleanup(func() {
		pids, _ := filepath.Glob(filepath.Join(dir, "pid*"))
		if len(pids) != 2 {
			t.Errorf("%d daemons were started, want one at each start", len(pids))
		}
		for _, path := range pids {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err == nil {
				err = syscall.Kill(pid, syscall.SIGKILL)
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	report, err := Check(t.Context(), Target{Endpoint: "unix://" + socket, Start: func() *exec.Cmd {
		driver := gate.RoleCommand(t.Context(), "reference", socket)
		// The driver begins when the daemon has left its group.
		cmd := exec.CommandContext(t.Context(), "/bin/sh", append([]string{"-c",
			`pid=$DIR/pid$$; setsid sh -c 'echo $$ >"$0"; exec sleep 600' "$pid" & until test -s "$pid"; do :; done; exec "$0" "$@"`, driver.Path}, driver.Args[1:]...)...)
		cmd.Env = append(driver.Env, "DIR="+dir)
		return cmd
	}}, Config{Rules: []string{"restart.volumes-kept"}, Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.ResultsWith(Failed)) != 1 { // its volumes are in memory
		t.Errorf("%+v", report.Results)
	}
}
