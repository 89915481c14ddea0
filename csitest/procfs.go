package csitest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What can be seen of the driver's processes from the same node.

// driverProcess: the process behind the socket is on this node.
var driverProcess = Need{"a driver on this node, behind a unix socket", FacilityLocalSocket, func(r *run) bool { return len(r.pids()) > 0 }}

// sockets are the paths of the endpoints.
func (r *run) sockets() (paths []string) {
	for _, e := range []string{r.target.Endpoint, r.target.ControllerEndpoint} {
		if path, ok := strings.CutPrefix(e, "unix:"); ok {
			path = "/" + strings.TrimLeft(path, "/")
			paths = append(paths, path)
		}
	}
	return paths
}

// pids are the processes that serve the endpoints.
func (r *run) pids() (pids []int) {
	for _, s := range r.sockets() {
		if pid := peer(s); pid > 0 && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// foreign reports whether none of them is this process.
func (r *run) foreign() bool { return !slices.Contains(r.pids(), os.Getpid()) }

// family are the driver's processes and those below them.
func (r *run) family() map[int]bool {
	family := map[int]bool{}
	for _, pid := range r.pids() {
		family[pid] = true
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is good
	for grown := true; grown; {
		grown = false
		for _, dir := range dirs {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			stat, err := os.ReadFile(filepath.Join(dir, "stat"))
			i := strings.LastIndex(string(stat), ")")
			if err != nil || i < 0 || family[pid] {
				continue
			}
			if f := strings.Fields(string(stat)[i+1:]); len(f) > 1 {
				if parent, _ := strconv.Atoi(f[1]); family[parent] {
					family[pid], grown = true, true
				}
			}
		}
	}
	return family
}

// watchArguments polls the arguments of the driver's processes until stop is closed, and
// returns those that contain the secret.
func (r *run) watchArguments(secret string, stop chan struct{}) string {
	for {
		for pid := range r.family() {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err == nil && strings.Contains(string(line), secret) {
				return strings.ReplaceAll(string(line), "\x00", " ")
			}
		}
		select {
		case <-stop:
			return ""
		case <-time.After(time.Millisecond):
		}
	}
}

// files are those in the directories of kubelet and of the sockets, without what is
// mounted there and without what is no file.
func (r *run) files() (paths []string) {
	dirs := []string{r.dir}
	for _, s := range r.sockets() {
		dirs = append(dirs, filepath.Dir(s))
	}
	skip := map[string]bool{}
	for _, m := range mounts("") {
		skip[m.point] = true
	}
	for _, dir := range dirs {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil: // gone meanwhile
			case skip[path] && d.IsDir():
				return fs.SkipDir
			case d.Type().IsRegular() && !skip[path] && !slices.Contains(paths, path):
				paths = append(paths, path)
			}
			return nil
		})
	}
	return paths
}

// mounted counts the mounts in the directories of kubelet and of the sockets: others
// on the node mount too.
func (r *run) mounted() (n int) {
	dirs := map[string]bool{r.dir: true}
	for _, s := range r.sockets() {
		dirs[filepath.Dir(s)] = true
	}
	for dir := range dirs {
		n += len(mounts(dir))
	}
	return n
}

// written are files that the driver may have written, and that are not huge.
func (r *run) written() (paths []string) {
	all := r.files()
	for pid := range r.family() {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // the pattern is good
		for _, fd := range fds {
			if path, err := os.Readlink(fd); err == nil && strings.HasPrefix(path, "/") && path != r.target.Log {
				all = append(all, path)
			}
		}
	}
	for _, path := range all {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Size() < 16*mib && path != r.target.Log {
			paths = append(paths, path)
		}
	}
	return paths
}

// An inventory is what the driver's processes hold.
type inventory struct{ descriptors, threads, processes int }

func (r *run) inventory() (n inventory) {
	for pid := range r.family() {
		fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		n.descriptors += len(fds)
		n.threads += len(threads)
		n.processes++
	}
	return n
}

// grownSince says what has become at least that much more.
func (n inventory) grownSince(before inventory, much int) string {
	var grown []string
	for _, x := range []struct {
		what          string
		before, after int
	}{{"descriptors", before.descriptors, n.descriptors}, {"threads", before.threads, n.threads}, {"processes", before.processes, n.processes}} {
		if x.after-x.before >= much {
			grown = append(grown, fmt.Sprintf("%d %s where %d were", x.after, x.what, x.before))
		}
	}
	return strings.Join(grown, ", ")
}

// besides are the names in the directory of a socket.
func siblings(dir string) (names []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.Type()&fs.ModeSocket == 0 {
			names = append(names, e.Name())
		}
	}
	return names
}

// noteSiblings remembers what was there before.
func (r *run) noteSiblings() {
	r.siblings = map[string][]string{}
	for _, s := range r.sockets() {
		r.siblings[filepath.Dir(s)] = siblings(filepath.Dir(s))
	}
}
