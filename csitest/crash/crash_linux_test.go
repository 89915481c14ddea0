//go:build amd64 || arm64

package crash_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/csikit/csikit/csitest/crash"
	"github.com/csikit/csikit/csitest/gate"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	gate.Main(m,
		gate.WithRole("driver", driver),
		gate.WithRole("parent", func() { // starts a traced process and waits
			p, err := crash.Start(exec.Command("sleep", "1000"))
			if err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			fmt.Println(p.Pid())
			_ = p.Wait()
		}),
	)
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// driver works in the directory of its argument: one operation per line of standard input,
// with one line as the result.
func driver() {
	dir := os.Args[1]
	at := func(name string) string { return filepath.Join(dir, name) }
	operations := map[string]func(){
		"warm up": func() { check(exec.Command("true").Run()) },
		"noise":   noise,
		"work": func() {
			f, err := os.OpenFile(at("a.tmp"), os.O_CREATE|os.O_RDWR, 0o600)
			check(err)
			_, err = f.Write([]byte("data"))
			check(err)
			check(f.Sync())
			_, err = f.ReadAt(make([]byte, 4), 0)
			check(err)
			check(f.Close())
			check(os.Rename(at("a.tmp"), at("a")))
			check(os.Mkdir(at("d"), 0o700))
			check(exec.Command("sh", "-c", `: > "$0"`, at("by sh")).Run())
			_, err = os.ReadFile(at("a"))
			check(err)
			check(os.Truncate(at("a"), 1))
			check(os.Remove(at("a")))
		},
		"careful": func() { // prints its errors, continues, and can be repeated
			for _, step := range []func() error{
				func() error { return os.MkdirAll(at("d"), 0o700) },
				func() error { return os.WriteFile(at("d/a"), []byte("data"), 0o600) },
				func() error { return exec.Command("true").Run() },
				func() error { return os.Rename(at("d/a"), at("d/b")) },
				func() error { return unix.Unlink(at("d/b")) },
				func() error { return unix.Rmdir(at("d")) },
			} {
				if err := step(); err != nil {
					fmt.Println(err)
					return
				}
			}
			fmt.Println("done")
		},
		"read only": func() {
			if _, err := os.ReadDir(dir); err != nil {
				fmt.Println(err)
				return
			}
			fmt.Println("done")
		},
		"start": func() {
			cmd := exec.Command("sleep", "1000")
			check(cmd.Start())
			fmt.Println(cmd.Process.Pid)
			check(os.Mkdir(at("d"), 0o700))
		},
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		operations[lines.Text()]()
		if lines.Text() != "careful" && lines.Text() != "read only" {
			fmt.Println("done")
		}
	}
}

// noise keeps the runtime busy: threads, timers, collections, pipes, the poller, reads.
func noise() {
	var stop atomic.Bool
	for range 8 {
		go func() {
			for !stop.Load() {
				r, w, err := os.Pipe()
				check(err)
				_, _ = w.Write(make([]byte, 100))
				_, _ = r.Read(make([]byte, 100))
				check(errors.Join(r.Close(), w.Close()))
				_, _ = os.ReadFile("/proc/self/status")
				_, _ = os.Stat("/nonexistent")
				_ = unix.Nanosleep(&unix.Timespec{Nsec: 1000}, nil)
				_ = make([]byte, 1<<16)
			}
		}()
	}
}

type session struct {
	*crash.Process
	stdin  io.WriteCloser
	stdout *bufio.Reader
}

func start(t *testing.T, dir string, opts ...crash.Option) *session {
	t.Helper()
	cmd := gate.RoleCommand(t.Context(), "driver", dir)
	cmd.Env = append(cmd.Env, "GOMAXPROCS=2") // and so the runtime reads no limits of its cgroup
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	p, err := crash.Start(cmd, opts...)
	must(t, err)
	t.Cleanup(func() {
		p.Kill()
		_ = p.Wait()
	})
	s := &session{p, stdin, bufio.NewReader(stdout)}
	s.do(t, "warm up")
	return s
}

// ask requests an operation and returns the first line of the result.
func (s *session) ask(operation string) (string, error) {
	if _, err := fmt.Fprintln(s.stdin, operation); err != nil {
		return "", err
	}
	line, err := s.stdout.ReadString('\n')
	return strings.TrimSpace(line), err
}

func (s *session) do(t *testing.T, operation string) {
	t.Helper()
	if answer, err := s.ask(operation); err != nil || answer != "done" {
		t.Fatalf("%s: %q, %v", operation, answer, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree returns what is in dir: the content of files, "dir" for directories.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || path == dir:
			return err
		case d.IsDir():
			found[d.Name()] = "dir"
			return nil
		}
		data, err := os.ReadFile(path)
		found[d.Name()] = string(data)
		return err
	}))
	return found
}

// work returns the calls of that operation, and what is there when the driver is
// killed at each of them, and not at all.
func work(dir string) ([]crash.Call, []map[string]string) {
	at := func(name string) string { return filepath.Join(dir, name) }
	d, sh := map[string]string{"a": "data", "d": "dir"}, map[string]string{"a": "data", "d": "dir", "by sh": ""}
	return []crash.Call{
			{Name: "openat", Object: at("a.tmp")},
			{Name: "write", Object: at("a.tmp")},
			{Name: "fsync", Object: at("a.tmp")},
			{Name: "renameat", Object: at("a.tmp") + " " + at("a")},
			{Name: "mkdirat", Object: at("d")},
			{Name: "clone"},
			{Name: "waitid returned"},
			{Name: "truncate", Object: at("a")},
			{Name: "unlinkat", Object: at("a")},
		}, []map[string]string{
			{},
			{"a.tmp": ""},
			{"a.tmp": "data"},
			{"a.tmp": "data"},
			{"a": "data"},
			d,
			sh, // has ended, but the driver does not know
			sh,
			{"a": "d", "d": "dir", "by sh": ""},
			{"d": "dir", "by sh": ""},
		}
}

func counted(t *testing.T, s *session) []crash.Call {
	t.Helper()
	s.Arm(0)
	s.do(t, "work")
	s.Disarm()
	return s.Calls()
}

func sameCalls(got, want []crash.Call) bool {
	return slices.EqualFunc(got, want, func(g, w crash.Call) bool {
		return strings.TrimSuffix(g.Name, "3") == w.Name && g.Object == w.Object // clone or clone3
	})
}

func TestCount(t *testing.T) {
	for _, noisy := range []bool{false, true} {
		t.Run(fmt.Sprint("noisy ", noisy), func(t *testing.T) {
			dir := t.TempDir()
			s := start(t, dir)
			if noisy {
				s.do(t, "noise")
			}
			want, _ := work(dir)
			for range 5 {
				if got := counted(t, s); !sameCalls(got, want) {
					t.Errorf("counted\n%v, want\n%v", got, want)
				}
				must(t, os.Remove(filepath.Join(dir, "d")))
			}
			// Nothing counts when disarmed.
			s.do(t, "warm up")
			if got := s.Calls(); !sameCalls(got, want) {
				t.Errorf("after Disarm: %v", got)
			}
			must(t, s.stdin.Close())
			if err := s.Wait(); err != nil || s.Killed() {
				t.Errorf("driver ended with %v, killed %v", err, s.Killed())
			}
		})
	}
}

func TestKillAtEveryCall(t *testing.T) {
	calls, _ := work("")
	for n := 1; n <= len(calls)+1; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			calls, states := work(dir)
			s := start(t, dir)
			s.do(t, "noise")
			s.Arm(n)
			answer, err := s.ask("work")
			if n > len(calls) {
				if err != nil || answer != "done" || s.Killed() {
					t.Errorf("fewer calls than %d: %q, %v, killed %v", n, answer, err, s.Killed())
				}
			} else {
				if err == nil {
					t.Fatalf("driver answered %q", answer)
				}
				err := s.Wait()
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL || !s.Killed() {
					t.Errorf("driver ended with %v, killed %v", err, s.Killed())
				}
				if got := s.Calls(); !sameCalls(got, calls[:n]) {
					t.Errorf("calls %v, want %v", got, calls[:n])
				}
			}
			if got := tree(t, dir); !maps.Equal(got, states[n-1]) {
				t.Errorf("after the kill: %v, want %v", got, states[n-1])
			}
		})
	}
}

// A call that fails has no effect and returns the error, and the program continues.
func TestFailAtEveryCall(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	s.do(t, "noise")
	steps := []struct {
		call string
		left map[string]string
	}{
		{"mkdirat", map[string]string{}},
		{"openat", map[string]string{"d": "dir"}},
		{"write", map[string]string{"d": "dir", "a": ""}},
		{"clone", map[string]string{"d": "dir", "a": "data"}},
		{"waitid returned", nil}, // does not fail
		{"renameat", map[string]string{"d": "dir", "a": "data"}},
		{"unlinkat", map[string]string{"d": "dir", "b": "data"}},
		{"unlinkat", map[string]string{"d": "dir"}},
		{"", nil}, // there is no such call
	}
	for i, step := range steps {
		for _, errno := range []syscall.Errno{unix.ENOSPC, unix.ENOSYS} {
			s.ArmFailure(i+1, errno)
			answer, err := s.ask("careful")
			must(t, err)
			calls := s.Calls()
			s.Disarm()
			if i < len(calls) && strings.TrimSuffix(calls[i].Name, "3") != step.call {
				t.Fatalf("call %d is %v, want %s", i+1, calls[i], step.call)
			}
			if step.left == nil {
				if answer != "done" || s.Failed() || len(calls) != len(steps)-1 {
					t.Errorf("call %d was to fail: %q, failed %v, calls %v", i+1, answer, s.Failed(), calls)
				}
				continue
			}
			if !strings.HasSuffix(answer, errno.Error()) || !s.Failed() || s.Killed() || len(calls) != i+1 {
				t.Errorf("%s is to fail with %v: %q, failed %v, killed %v, calls %v", step.call, errno, answer, s.Failed(), s.Killed(), calls)
			}
			if got := tree(t, dir); !maps.Equal(got, step.left) {
				t.Errorf("%s failed: %v, want %v", step.call, got, step.left)
			}
			s.do(t, "careful")
		}
	}
	s.Arm(0)
	if s.Failed() {
		t.Error("armed again, and failed already")
	}
}

func TestWithReads(t *testing.T) {
	dir := t.TempDir()
	want := []crash.Call{{Name: "openat", Object: dir}, {Name: "getdents64", Object: dir}, {Name: "getdents64", Object: dir}}
	for _, test := range []struct {
		opts []crash.Option
		want []crash.Call
	}{{nil, nil}, {[]crash.Option{crash.WithReads()}, want}} {
		s := start(t, dir, test.opts...)
		s.Arm(0)
		s.do(t, "read only")
		if got := s.Calls(); !slices.Equal(got, test.want) {
			t.Errorf("counted %v, want %v", got, test.want)
		}
		for n := range test.want {
			s.ArmFailure(n+1, unix.ENOMEM)
			answer, err := s.ask("read only")
			must(t, err)
			if !strings.HasSuffix(answer, unix.ENOMEM.Error()) || !s.Failed() {
				t.Errorf("%v is to fail: %q, failed %v", test.want[n], answer, s.Failed())
			}
		}
	}
}

// awaitEnd waits until process pid, not a child, has ended, and reports whether
// it did within ten seconds.
func awaitEnd(t *testing.T, pid int) bool {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return true
	}
	must(t, err)
	defer unix.Close(fd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
		if err != unix.EINTR {
			must(t, err)
			return n == 1
		}
	}
}

func TestWhatTheProgramStarted(t *testing.T) {
	for _, test := range []struct {
		name  string
		opts  []crash.Option
		lives bool
	}{
		{name: "lives on", lives: true},
		{name: "is killed with the tree", opts: []crash.Option{crash.WithKillTree()}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := start(t, t.TempDir(), test.opts...)
			s.Arm(2) // clone, mkdirat
			answer, err := s.ask("start")
			must(t, err)
			pid, err := strconv.Atoi(answer)
			must(t, err)
			<-s.Done()
			if !s.Killed() {
				t.Error("driver was not killed")
			}
			if !test.lives {
				if !awaitEnd(t, pid) {
					t.Errorf("process %d is still there", pid)
				}
				return
			}
			if err := unix.Kill(pid, 0); err != nil {
				t.Errorf("process %d: %v", pid, err)
			}
			must(t, unix.Kill(pid, unix.SIGKILL))
			awaitEnd(t, pid)
		})
	}
}

func TestProgramIsKilledWithTheTest(t *testing.T) {
	cmd := gate.RoleCommand(t.Context(), "parent")
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	must(t, err)
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if !awaitEnd(t, pid) {
		t.Errorf("process %d is still there", pid)
	}
}

// The tracer consumes no events of other children of the test.
func TestOtherChildren(t *testing.T) {
	s := start(t, t.TempDir())
	s.do(t, "noise")
	for range 20 {
		if err := exec.Command("sh", "-c", "exit 3").Run(); err == nil || err.Error() != "exit status 3" {
			t.Fatalf("another child ended with %v", err)
		}
	}
}

// Nor of those that were started earlier on the thread that is the tracer now.
func TestOlderChildren(t *testing.T) {
	var older []*exec.Cmd
	for range 8 {
		cmd := exec.Command("sh", "-c", "read line; exit 3")
		stdin, err := cmd.StdinPipe()
		must(t, err)
		must(t, cmd.Start())
		older = append(older, cmd)
		t.Cleanup(func() { stdin.Close() })
		p, err := crash.Start(exec.Command("sleep", "60"))
		must(t, err)
		t.Cleanup(func() {
			p.Kill()
			_ = p.Wait()
		})
		must(t, stdin.Close())
	}
	for _, cmd := range older {
		if err := cmd.Wait(); err == nil || err.Error() != "exit status 3" {
			t.Errorf("a child that is older than the tracer ended with %v", err)
		}
	}
}

// A kill while threads enter and leave system calls, whose stops were reported to the tracer
// but not handled yet.
func TestKillOfABusyProgram(t *testing.T) {
	dir := t.TempDir()
	for range 100 {
		s := start(t, dir)
		s.do(t, "noise")
		s.Kill()
		if err := s.Wait(); err == nil {
			t.Fatal("killed, and ended with success")
		}
	}
}

func TestStartFails(t *testing.T) {
	_, err := crash.Start(exec.Command("/nonexistent/driver"))
	var e *crash.Error
	if !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &e) || e.Op != "start" {
		t.Errorf("Start: %v", err)
	}
}

func TestSignalsReachTheProgram(t *testing.T) {
	p, err := crash.Start(exec.Command("sh", "-c", `trap 'exit 4' TERM; kill -TERM $$; exit 5`))
	must(t, err)
	for range 2 { // Wait may be called again
		if err := p.Wait(); err == nil || err.Error() != "exit status 4" {
			t.Errorf("ended with %v, want exit status 4", err)
		}
	}
	p.Kill() // no-op
}
