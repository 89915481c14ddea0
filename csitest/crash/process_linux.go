//go:build amd64 || arm64

package crash

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Process is a program that is traced by this package.
type Process struct {
	cmd   *exec.Cmd
	tree  bool
	reads bool
	done  chan struct{} // closed when the program has ended
	wait  func() error

	mu     sync.Mutex
	armed  bool
	at     int
	errno  syscall.Errno // of the n-th call; 0: kill
	calls  []Call
	waits  map[int]string // by thread: the wait call in progress
	failed bool
	killed bool
	ended  bool  // no more signals may be sent
	err    error // why tracing failed

	// By thread: whether it stops at its calls, and whether Arm has stopped it.
	watched, kicked map[int]bool

	failing map[int]syscall.Errno // by thread, between entry and exit; the tracer's
}

// Start starts cmd, disarmed. The program is traced from its first instruction, and is
// killed when the calling process ends. Use Process.Wait: cmd.Wait would receive the events
// of the tracer.
func Start(cmd *exec.Cmd, opts ...Option) (*Process, error) {
	var c config
	for _, o := range opts {
		o.apply(&c)
	}
	var attr syscall.SysProcAttr
	if cmd.SysProcAttr != nil {
		attr = *cmd.SysProcAttr
	}
	attr.Ptrace = true
	attr.Pdeathsig = syscall.SIGKILL // until PTRACE_O_EXITKILL is set
	if !attr.Setsid {
		attr.Setpgid = true // the tracer waits for this process group, not for other children of the test
	}
	cmd.SysProcAttr = &attr

	p := &Process{cmd: cmd, tree: c.tree, reads: c.reads, done: make(chan struct{}), watched: map[int]bool{}, kicked: map[int]bool{}, failing: map[int]syscall.Errno{}}
	p.wait = sync.OnceValue(p.waitOnce)
	started := make(chan error)
	go func() {
		// The thread that starts the program is its tracer, and only that thread
		// may resume it. It is never unlocked, and so ends with the goroutine.
		runtime.LockOSThread()
		err := p.start()
		started <- err
		if err == nil {
			err := p.trace()
			p.mu.Lock()
			p.ended, p.err = true, err
			p.mu.Unlock()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, &Error{Op: "start", Path: cmd.Path, Err: err}
	}
	return p, nil
}

// Arm resets the count and counts calls from now on, and kills the program on entry to the
// n-th. With 0 it only counts. A call in progress does not count.
func (p *Process) Arm(n int) { p.arm(n, 0) }

// ArmFailure resets the count and counts calls from now on, and makes the n-th fail: it does
// not run, returns errno (which must not be 0), and the program continues. Later calls count
// and run. The return of a wait counts but does not fail, as it would not fail in the
// kernel.
func (p *Process) ArmFailure(n int, errno syscall.Errno) { p.arm(n, errno) }

func (p *Process) arm(n int, errno syscall.Errno) {
	p.mu.Lock()
	p.armed, p.at, p.errno, p.failed, p.calls, p.waits = true, n, errno, false, nil, map[int]string{}
	threads := p.kick()
	p.mu.Unlock()
	for p.unwatched(threads) {
		time.Sleep(100 * time.Microsecond)
	}
}

// kick stops the threads that run without stops, so that they are watched from then on.
// Threads do that while nothing is counted, as stopping at every call makes a Go program
// several times slower. It is called with mu held.
func (p *Process) kick() (kicked []int) {
	if p.ended {
		return nil
	}
	pid := p.cmd.Process.Pid
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) // none: it has ended
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil || p.watched[tid] {
			continue
		}
		p.kicked[tid] = true
		if unix.Tgkill(pid, tid, unix.SIGSTOP) == nil {
			kicked = append(kicked, tid)
		}
	}
	return kicked
}

// unwatched reports whether one of the threads may still make a call that is not counted.
// One that is blocked in the kernel cannot: it stops before it returns.
func (p *Process) unwatched(threads []int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.ended && slices.ContainsFunc(threads, func(tid int) bool {
		return !p.watched[tid] && threadState(p.cmd.Process.Pid, tid) == "R"
	})
}

// threadState returns the state of proc_pid_stat(5), a letter; "" for a thread that has ended.
func threadState(pid, tid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid))
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if err != nil || len(fields) == 0 {
		return ""
	}
	return fields[0]
}

// Disarm stops counting and keeps the recorded calls.
func (p *Process) Disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = false
}

// Calls returns the calls that were counted since Arm, in the order of entry. If the program
// was killed by Arm, the last one is the call that did not run.
func (p *Process) Calls() []Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// Killed reports whether the program was killed at the call that Arm selected.
func (p *Process) Killed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killed
}

// Failed reports whether a call has failed since ArmFailure, because of it.
func (p *Process) Failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// Pid returns the process ID.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill kills the program, if it is running. It does not wait.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kill()
}

// Wait waits for the end of the program and returns what cmd.Wait returns, or why
// tracing failed. It may be called repeatedly.
func (p *Process) Wait() error { return p.wait() }

func (p *Process) waitOnce() error {
	<-p.done
	err := p.cmd.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return &Error{Op: "trace", Path: p.cmd.Path, Err: p.err}
	}
	return err
}

// kill is called with mu held.
func (p *Process) kill() {
	if p.ended {
		return
	}
	var others []int
	if p.tree {
		others = stopDescendants(p.cmd.Process.Pid)
	}
	_ = unix.Kill(p.cmd.Process.Pid, unix.SIGKILL)
	for _, pid := range others {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// stopDescendants stops the descendants of pid, so that they start no more, and returns
// their IDs.
func stopDescendants(pid int) []int {
	var found []int
	for {
		parents := parentIDs()
		grown := false
		for child, parent := range parents {
			if (parent == pid || slices.Contains(found, parent)) && !slices.Contains(found, child) {
				_ = unix.Kill(child, unix.SIGSTOP)
				found = append(found, child)
				grown = true
			}
		}
		if !grown {
			return found
		}
	}
}

// parentIDs maps each process to its parent.
func parentIDs() map[int]int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	parents := map[int]int{}
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // ended meanwhile
		}
		// pid (name) state ppid, where the name may hold any character
		i := strings.LastIndex(string(data), ") ")
		fields := strings.Fields(string(data[i+1:]))
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		if err != nil || i < 0 || len(fields) < 2 {
			continue
		}
		if ppid, err := strconv.Atoi(fields[1]); err == nil {
			parents[pid] = ppid
		}
	}
	return parents
}

// start starts the program and stops it at its first instruction.
func (p *Process) start() error {
	if err := p.cmd.Start(); err != nil {
		return err
	}
	pid := p.cmd.Process.Pid
	fail := func(err error) error {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		return err
	}
	var status unix.WaitStatus
	if _, err := wait4(pid, &status, unix.WALL); err != nil {
		return fail(os.NewSyscallError("wait4", err))
	}
	if !status.Stopped() || status.StopSignal() != unix.SIGTRAP {
		return fail(fmt.Errorf("unexpected state %#x after exec", status))
	}
	// Forks are not followed: child processes are not traced, and survive the program.
	const options = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(pid, options); err != nil {
		return fail(os.NewSyscallError("ptrace", err))
	}
	if err := unix.PtraceCont(pid, 0); err != nil {
		return fail(os.NewSyscallError("ptrace", err))
	}
	return nil
}

// trace serves the threads of the program until it ends. The end itself is left
// for cmd.Wait.
func (p *Process) trace() error {
	leader := p.cmd.Process.Pid
	threads := map[int]bool{leader: true}
	pgid, err := unix.Getpgid(leader)
	if err != nil {
		p.Kill()
		return os.NewSyscallError("getpgid", err)
	}
	for {
		pid, ended, err := nextEvent(pgid)
		if err != nil {
			p.Kill()
			return err
		}
		if ended && pid == leader { // reported when no other thread is left
			return nil
		}
		var status unix.WaitStatus
		// WNOHANG: a stopped thread may be killed before this call, and the leader's end is
		// not reported before that of all other threads.
		waited, err := wait4(pid, &status, unix.WALL|unix.WNOTHREAD|unix.WNOHANG)
		if waited == 0 && err == nil || errors.Is(err, unix.ECHILD) {
			continue
		}
		if err != nil {
			p.Kill()
			return os.NewSyscallError("wait4", err)
		}
		if !status.Stopped() {
			delete(threads, pid)
			p.forget(pid)
			continue
		}
		deliver := 0
		switch sig := status.StopSignal(); {
		case sig == unix.SIGTRAP|0x80:
			err = p.systemCall(pid)
		case sig == unix.SIGTRAP && status.TrapCause() > 0: // a ptrace event
		case sig == unix.SIGSTOP && (p.wasKicked(pid) || !threads[pid]): // or how a new thread reports
		default:
			deliver = int(sig)
		}
		threads[pid] = true
		if err == nil {
			err = p.resume(pid, deliver)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) { // which is: killed meanwhile
			p.Kill()
			return os.NewSyscallError("ptrace", err)
		}
	}
}

// resume continues a thread: to its next call, if calls are watched.
func (p *Process) resume(tid, signal int) error {
	p.mu.Lock()
	_, failing := p.failing[tid]
	watch := p.armed && !p.killed || failing
	p.watched[tid] = watch
	p.mu.Unlock()
	if watch {
		return unix.PtraceSyscall(tid, signal)
	}
	return unix.PtraceCont(tid, signal)
}

func (p *Process) wasKicked(tid int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.kicked[tid]
	delete(p.kicked, tid)
	return was
}

func (p *Process) forget(tid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.failing, tid)
	delete(p.watched, tid)
	delete(p.kicked, tid)
}

// systemCall handles a stop of thread tid on entry to or exit from a call, and if it is the
// n-th, kills the program or makes the call fail.
func (p *Process) systemCall(tid int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if errno, is := p.failing[tid]; is {
		delete(p.failing, tid)
		return setResult(tid, errno)
	}
	if !p.armed || p.killed {
		return nil
	}
	info, err := getSyscallInfo(tid)
	if err != nil {
		return err
	}
	call, counts := info.observe(tid, p.waits, p.reads)
	if !counts {
		return nil
	}
	p.calls = append(p.calls, call)
	switch {
	case len(p.calls) != p.at:
	case p.errno == 0:
		p.killed = true
		// The kernel does not run a call on whose entry the thread was killed.
		p.kill()
	case info.op == unix.PTRACE_SYSCALL_INFO_ENTRY:
		if err := skipCall(tid); err != nil {
			return err
		}
		p.failing[tid], p.failed = p.errno, true
	}
	return nil
}
