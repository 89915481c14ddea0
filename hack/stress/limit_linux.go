package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A limit gives each run a part of a core: by a control group of its own where this process
// may make one, otherwise by letting the busy loops go first.
type limit struct {
	parent string // of the control groups; empty: SCHED_IDLE
	v2     bool
	quota  int // percent of a core
}

const period = 100_000 // µs, cpu.max and cpu.cfs_period_us

func newLimit(quota int) (*limit, error) {
	l := &limit{quota: quota}
	if quota == 0 {
		return l, nil
	}
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if text, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control")); err == nil && bytes.Contains(text, []byte("cpu")) {
			l.v2 = true
			return l, l.make(root)
		}
	}
	if _, err := os.Stat("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"); err == nil {
		return l, l.make("/sys/fs/cgroup/cpu")
	}
	return l, nil
}

// make makes the parent of the groups, or leaves it at SCHED_IDLE where that is not allowed.
func (l *limit) make(root string) error {
	dir, err := os.MkdirTemp(root, "csikit-stress-")
	if errors.Is(err, os.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return nil
	}
	if err != nil {
		return err
	}
	l.parent = dir
	if l.v2 {
		return os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpu"), 0)
	}
	return nil
}

func (l *limit) String() string {
	switch {
	case l.quota == 0:
		return "all cores"
	case l.parent == "":
		return "the time that nothing else takes (chrt --idle: no control group can be made)"
	}
	return fmt.Sprintf("%d%% of a core", l.quota)
}

func (l *limit) close() error {
	if l.parent == "" {
		return nil
	}
	return os.Remove(l.parent) // control files need not be removed
}

// A group is the control group of one run; dir is empty without one.
type group struct {
	dir   string
	limit *limit
}

func (l *limit) group() (*group, error) {
	if l.parent == "" {
		return &group{limit: l}, nil
	}
	dir, err := os.MkdirTemp(l.parent, "")
	if err != nil {
		return nil, err
	}
	file, value := "cpu.cfs_quota_us", strconv.Itoa(l.quota*period/100)
	if l.v2 {
		file, value = "cpu.max", fmt.Sprintf("%d %d", l.quota*period/100, period)
	}
	return &group{dir, l}, os.WriteFile(filepath.Join(dir, file), []byte(value), 0)
}

// command returns the command that runs args in the group.
func (g *group) command(args []string) []string {
	switch {
	case g.dir != "":
		return append([]string{"sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, g.dir}, args...)
	case g.limit.quota != 0:
		return append([]string{"chrt", "--idle", "0"}, args...)
	}
	return args
}

// close ends what still runs in the group, and removes it.
func (g *group) close() error {
	if g.dir == "" {
		return nil
	}
	var err error
	for range 3000 { // a process that ends is a member until it is reaped
		if err = os.Remove(g.dir); err == nil {
			return nil
		}
		members, _ := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
		for pid := range strings.FieldsSeq(string(members)) {
			if n, err := strconv.Atoi(pid); err == nil {
				_ = syscall.Kill(n, syscall.SIGKILL)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}
