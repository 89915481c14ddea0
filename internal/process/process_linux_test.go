package process

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/csikit/csikit/csitest/gate"
	"golang.org/x/sys/unix"
)

func init() { runtime.LockOSThread() } // main runs on the first thread

func TestMain(m *testing.M) {
	gate.Main(m, gate.WithRole("first thread ends", func() {
		go func() {
			for state, _ := os.ReadFile("/proc/self/stat"); !isZombie(string(state)); state, _ = os.ReadFile("/proc/self/stat") {
				runtime.Gosched()
			}
			fmt.Println("a zombie")
			time.Sleep(time.Hour)
		}()
		_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // exit(2): the thread alone
	}))
}

func isZombie(stat string) bool {
	var pid int
	var name, state string
	_, err := fmt.Sscanf(stat, "%d %s %s", &pid, &name, &state)
	return err == nil && state == "Z"
}

// The first thread of a process that is killed may end before the others, one of which may
// be in mount(2): such a process runs, though its state is that of a zombie.
func TestAZombieWithThreadsRuns(t *testing.T) {
	cmd := Command(t.Context(), "")
	role := gate.RoleCommand(context.WithoutCancel(t.Context()), "first thread ends")
	cmd.Path, cmd.Args, cmd.Env, cmd.Err = role.Path, role.Args, role.Env, nil
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	if !groupRuns(cmd.Process.Pid) {
		t.Error("it is taken for ended while a thread of it runs")
	}
	cmd.Stop()
	reapGroup(cmd.Process.Pid)
	if groupRuns(cmd.Process.Pid) {
		t.Error("it was killed, and runs")
	}
	_ = cmd.Wait()
}
