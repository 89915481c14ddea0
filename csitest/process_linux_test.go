package csitest

import (
	"bufio"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csikit/csikit/csitest/gate"
)

func init() {
	runtime.LockOSThread() // main runs on the first thread
	roles = append(roles, gate.WithRole("first thread ends", func() {
		go func() {
			for stat := ""; !strings.Contains(stat, ") Z "); {
				text, _ := os.ReadFile("/proc/self/stat")
				stat = string(text)
				runtime.Gosched()
			}
			os.Stdout.WriteString("a zombie\n")
			time.Sleep(time.Hour)
		}()
		_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) // exit(2): the thread alone
	}))
}

// The first thread of a driver may end before the others, which keep its sockets and locks.
func TestAZombieWithThreadsRuns(t *testing.T) {
	cmd := gate.RoleCommand(t.Context(), "first thread ends")
	ownGroup(cmd)
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
	if awaitGroup(cmd, 0) {
		t.Error("it is taken for gone while a thread of it runs")
	}
	killGroup(cmd)
	if !awaitGroup(cmd, time.Minute) {
		t.Error("it was killed, and runs")
	}
	_ = cmd.Wait()
}

// What a driver that is started with Pdeathsig ends with is the thread that started it, and
// rules that act as another user end threads.
func TestDriverOutlivesThreads(t *testing.T) {
	p := newProcess(func() *exec.Cmd {
		cmd := exec.Command("sleep", "3600")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd
	})
	if err := p.start(); err != nil {
		t.Fatal(err)
	}
	// As many goroutines as take each thread that is free.
	for range 100 {
		ended := make(chan struct{})
		for range 10 {
			go func() {
				runtime.LockOSThread()
				ended <- struct{}{}
			}()
		}
		for range 10 {
			<-ended
		}
	}
	select {
	case <-p.exited:
		t.Errorf("the driver ended with a thread: %v", p.err)
	default:
	}
	p.kill()
	_ = p.log.Close()
}
