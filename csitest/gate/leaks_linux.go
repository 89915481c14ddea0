package gate

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// grace is how long a closing connection or an ending process may still take
// after the last test, on a busy machine.
const grace = 5 * time.Second

// An inventory is what this process had before the tests.
type inventory struct {
	dir      string
	private  bool // no other process has the mounts
	mounts   map[mount]bool
	files    map[string]bool
	children map[process]bool
}

// A leak is something that the tests left behind. fix is nil where nothing but
// the end of the process helps.
type leak struct {
	what string
	fix  func() error
}

func takeInventory(dir string, private bool) inventory {
	// The runtime's poller opens its descriptors at the first use and keeps them.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	v := inventory{dir: dir, private: private, mounts: map[mount]bool{}, files: map[string]bool{}, children: map[process]bool{}}
	for _, m := range mounts() {
		v.mounts[m] = true
	}
	for _, f := range openFiles() {
		v.files[f] = true
	}
	for _, c := range children() {
		v.children[c] = true
	}
	return v
}

// leaks lists what is there now and was not before, in the order in which it can
// be removed.
func (v inventory) leaks() []leak {
	var found []leak
	for _, c := range children() {
		if !v.children[c] {
			found = append(found, c.leak())
		}
	}
	all := mounts()
	slices.Reverse(all) // the last mount hides those below it
	for _, m := range all {
		if !v.mounts[m] && (v.private || isBelow(m.point, v.dir)) {
			found = append(found, leak{
				what: fmt.Sprintf("mount of %s (%s) at %s", m.source, m.fstype, m.point),
				fix:  func() error { return unix.Unmount(m.point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) },
			})
		}
	}
	found = append(found, loopLeaks(v.dir)...)
	for _, f := range openFiles() {
		if !v.files[f] {
			found = append(found, leak{what: "open descriptor " + f})
		}
	}
	return found
}

// settle polls list until it is empty or the grace is over.
func settle(list func() []leak) []leak {
	deadline := time.Now().Add(grace)
	for {
		found := list()
		if len(found) == 0 || time.Now().After(deadline) {
			return found
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// reportLeaks prints what the tests left behind, removes it where it can, and
// reports whether there was any.
func reportLeaks(before inventory) bool {
	found := settle(before.leaks)
	remove(found)
	return len(found) > 0
}

func remove(found []leak) {
	for _, l := range found {
		if l.fix == nil {
			fmt.Fprintf(os.Stderr, "gate: tests left behind: %s\n", l.what)
			continue
		}
		fate := "removed now"
		if err := l.fix(); err != nil {
			fate = fmt.Sprintf("could not be removed: %v", err)
		}
		fmt.Fprintf(os.Stderr, "gate: tests left behind: %s (%s)\n", l.what, fate)
	}
}

// cleanRunDir is the outer process's part: it ends orphans, detaches loop devices
// and removes the run directory, and reports whether there was anything to find.
func cleanRunDir(dir string) bool {
	running := func() []leak {
		reap()
		var found []leak
		for _, c := range children() {
			found = append(found, c.leak())
		}
		return found
	}
	left := false
	// Killing a process hands its children to us, so check again; but not forever,
	// because a process inside the kernel may not die.
	deadline := time.Now().Add(5 * grace)
	for found := settle(running); len(found) > 0 && time.Now().Before(deadline); found = running() {
		left = true
		remove(found)
	}
	// A device is released when the mount namespace of the tests is gone, which
	// happens behind the end of their last process.
	if found := loopLeaks(dir); len(found) > 0 {
		left = true
		remove(found)
		settle(func() []leak { return loopLeaks(dir) })
	}
	// Removal is recursive: never across a mount that we can see.
	for _, m := range mounts() {
		if isBelow(m.point, dir) {
			fmt.Fprintf(os.Stderr, "gate: %s is mounted in the host's namespace: unmount it and remove %s\n", m.point, dir)
			return true
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintf(os.Stderr, "gate: remove the run directory: %v\n", err)
		return true
	}
	return left
}

func isBelow(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}

type mount struct{ id, point, fstype, source string }

// mounts reads the mount table of this process, oldest first.
func mounts() []mount {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var all []mount
	for line := range strings.Lines(string(data)) {
		// id parent dev root point options [tag...] - fstype source superoptions
		head, tail, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		h, t := strings.Split(head, " "), strings.Split(tail, " ")
		if len(h) >= 6 && len(t) >= 2 {
			all = append(all, mount{id: h[0], point: unescape.Replace(h[4]), fstype: t[0], source: t[1]})
		}
	}
	return all
}

// unescape undoes what the kernel does to separators in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#")

// openFiles lists descriptors as "number -> what".
func openFiles() []string {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	var open []string
	for _, name := range names {
		target, err := os.Readlink("/proc/self/fd/" + name)
		if err != nil || name == strconv.Itoa(int(dir.Fd())) {
			continue
		}
		open = append(open, name+" -> "+target)
	}
	return open
}

type process struct {
	pid  int
	name string
}

func (p process) leak() leak {
	return leak{
		what: fmt.Sprintf("child process %d (%s), still running or never waited for", p.pid, p.name),
		fix: func() error {
			if err := unix.Kill(p.pid, unix.SIGKILL); err != nil {
				return err
			}
			// Bounded: a process inside the kernel may not die.
			for deadline := time.Now().Add(grace); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
				if pid, err := unix.Wait4(p.pid, nil, unix.WNOHANG, nil); pid == p.pid || err == unix.ECHILD {
					return nil
				}
			}
			return fmt.Errorf("still there %v after SIGKILL", grace)
		},
	}
}

// children lists the child processes of this one, including those that ended
// and were not waited for.
func children() []process {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var found []process
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // ended meanwhile
		}
		// pid (name) state ppid, where the name may hold any character
		head, tail, ok := cutLast(string(data), ") ")
		fields := strings.Fields(tail)
		if !ok || len(fields) < 2 || fields[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		number, name, _ := strings.Cut(head, " (")
		if pid, err := strconv.Atoi(number); err == nil {
			found = append(found, process{pid: pid, name: name})
		}
	}
	return found
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// reap waits for children that have ended.
func reap() {
	for {
		if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 && err != unix.EINTR {
			return
		}
	}
}

// loopLeaks lists the loop devices whose backing file lies below dir: those of
// this run, while other packages' tests run beside it.
func loopLeaks(dir string) []leak {
	found := map[string]string{}
	configured, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, path := range configured {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // detached meanwhile
		}
		name := strings.Split(path, "/")[3]
		backing := strings.TrimSuffix(string(data), "\n")
		// A backing file on a mount of a namespace that is gone is shown relative to
		// that mount. What the creator called it is still the full path. Asking for it
		// opens the device, which another process may be about to detach: do so only
		// where the file is out of sight.
		if _, err := os.Lstat(backing); err != nil && !isBelow(backing, dir) {
			backing = statedBacking(name)
		}
		if isBelow(backing, dir) {
			found[name] = backing
		}
	}
	var leaks []leak
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(found))) {
		leaks = append(leaks, leak{
			what: fmt.Sprintf("loop device /dev/%s of %s", name, found[name]),
			fix: func() error {
				loop, err := os.OpenFile("/dev/"+name, os.O_RDONLY, 0)
				if err != nil {
					return err
				}
				defer loop.Close()
				return unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_CLR_FD, 0)
			},
		})
	}
	return leaks
}

func statedBacking(name string) string {
	loop, err := os.OpenFile("/dev/"+name, os.O_RDONLY, 0)
	if err != nil {
		return ""
	}
	defer loop.Close()
	info, err := unix.IoctlLoopGetStatus64(int(loop.Fd()))
	if err != nil {
		return ""
	}
	return unix.ByteSliceToString(info.File_name[:])
}
