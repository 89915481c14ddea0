//go:build unix

package csitest

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

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

// A group whose processes have ended is gone, though nobody has reaped them.
func TestZombiesAreGone(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "echo; exec sleep 600")
	ownGroup(cmd)
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
	if awaitGroup(cmd, 0) {
		t.Error("a process that runs is gone")
	}
	killGroup(cmd)
	if runtime.GOOS == "linux" && !awaitGroup(cmd, time.Minute) {
		t.Error("a zombie is not gone")
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it was not killed")
	}
}

// A driver that cannot be started again ends the run, with the end of its log.
func TestDriverThatStaysDown(t *testing.T) {
	socket := filepath.Join(socketDir(t), "csi.sock")
	starts := 0
	report, err := Check(t.Context(), Target{Endpoint: "unix://" + socket, Start: func() *exec.Cmd {
		if starts++; starts == 1 {
			return gate.RoleCommand(t.Context(), "reference", socket, "ValidateVolumeCapabilities")
		}
		return exec.CommandContext(t.Context(), "/bin/sh", "-c", "echo no license; exit 7")
	}}, Config{Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if starts != 2 {
		t.Errorf("%d starts, want 2", starts)
	}
	if report.OK() {
		t.Error("the report is OK")
	}
	down := false
	for _, x := range report.Results {
		if down && x.Outcome != NotRun && x.Outcome != DoesNotApply {
			t.Errorf("%s after that: %s", x.Rule.ID, x.Outcome)
		}
		for _, f := range x.Failures {
			down = down || strings.Contains(f.String(), "no license") && strings.Contains(f.String(), "exit status 7")
		}
	}
	if !down {
		t.Error("no failure says why the driver does not start")
	}
}
