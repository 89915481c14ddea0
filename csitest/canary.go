package csitest

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// A canary is a small tree below the run's directory that hostile requests lead to. A
// driver that handles them correctly never touches it; a driver that does not, damages
// the canary and nothing else.
//
// Not observed: reading, unless the content comes back in an answer, because mounts
// with relatime or noatime do not update access times reliably.
type canary struct {
	dir    string // holds nothing else
	file   string // a regular file, with secret as its content
	tree   string // a directory with one file
	marker string // does not exist: shell fragments create it
	run    *run
	name   string // random; begins every part of an ID that is not a path of the canary
	secret string
	was    map[string]string // what snapshot returned when everything was in place
}

// plainPath matches paths that mean themselves in a shell, in a list separated by white
// space and in a pattern, and that no program takes for an option.
var plainPath = regexp.MustCompile(`^(/[A-Za-z0-9_.][A-Za-z0-9_.-]*)+$`)

// plainName matches the names of drivers that mean themselves in a path and in a shell.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// plantCanary creates a canary with names that exist nowhere else.
func (c *ruleRun) plantCanary() *canary {
	random := func() string { return strings.ToLower(rand.Text()[:12]) }
	k := &canary{run: c.run, name: random(), secret: rand.Text()}
	k.dir = c.mkdir(filepath.Join(c.run.dir, "canary", random()))
	k.file, k.tree, k.marker = filepath.Join(k.dir, random()), filepath.Join(k.dir, random()), filepath.Join(k.dir, random())
	err := errors.Join(
		os.WriteFile(k.file, []byte(k.secret), 0o640),
		os.Mkdir(k.tree, 0o750),
		os.WriteFile(filepath.Join(k.tree, "file"), []byte(k.secret), 0o640),
	)
	if err == nil {
		k.was, err = k.snapshot()
	}
	if err != nil {
		panic(fmt.Sprintf("canary: %v", err))
	}
	return k
}

// A hostileID is one that a driver must not use as a path, in a command or in a pattern.
type hostileID struct{ id, takenFor string }

// maxID is the size limit of volume_id, in bytes.
const maxID = 128

// ids returns the hostile IDs. Each is chosen so that the worst that a driver can do with
// it stays within its own storage and the canary:
//
//   - Traversals go up to / and then down to the canary, from every depth up to the number
//     of levels. From deeper they name something that exists nowhere. They begin with a dot, so
//     that a driver that uses the first component as a name stays in its storage. IDs such as "/", "."
//     and ".." are missing because joined to a directory they name the directory, or its
//     parent.
//   - Everything else begins with a random name, so that "rm -rf $pool/$id" without quotes
//     removes nothing. White space is followed by a path of the canary, and never comes
//     last: "rm -rf $pool/$id/*" would be "rm -rf /*".
//   - Fragments that end a command also end the shell, with a failure, and comment out the
//     rest of the line: "cd $pool/$id && rm -rf *" must not get to its second half.
//   - The option is a long one that no program has.
func (k *canary) ids() []hostileID {
	levels := max(16, (maxID-len(k.file)-len(k.name)-1)/len("../"))
	up := strings.Repeat("../", levels)
	down := func(path string) string { return up + strings.TrimPrefix(path, "/") }
	const path, shell, pattern = "as a path", "as part of a shell command", "as a pattern, a format or an option"
	command := ">" + k.marker + ";false;exit;#"
	return []hostileID{
		{"./" + down(k.file), path},
		{"./" + down(k.tree), path},
		{k.file, path},
		{k.name + "/" + down(k.file), path},
		{k.name + "$(>" + k.marker + ")", shell},
		{k.name + "`>" + k.marker + "`", shell},
		{k.name + ";" + command, shell},
		{k.name + "';" + command + "'", shell},
		{k.name + `";` + command + `"`, shell},
		{k.name + "\n" + k.file, "as part of a shell command, or as a line"},
		{"--csicheck-" + k.name, pattern},
		{k.name + "*", pattern},
		{k.name + "%s%n", pattern},
		{k.name + "\x00" + k.name, pattern},
		{k.name + "\u202e" + k.name, pattern},
		{k.name + strings.Repeat("x", maxID-len(k.name)), pattern},
	}
}

// paths returns target paths that are no absolute paths of the node. A driver that uses
// one anyway ends up below the canary's directory.
func (k *canary) paths() []string {
	return []string{
		strings.Repeat("../", 64) + strings.TrimPrefix(k.dir, "/") + "/relative",
		k.dir + "/nul\x00/x",
		k.dir + strings.Repeat("/"+strings.Repeat("x", 255), 17),
	}
}

// snapshot describes everything in the canary's directory, by path.
func (k *canary) snapshot() (map[string]string, error) {
	all := map[string]string{}
	return all, filepath.WalkDir(k.dir, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		var info fs.FileInfo
		if err == nil {
			info, err = os.Lstat(path)
		}
		if err != nil {
			return err
		}
		gid, _, _ := owner(path) // on Linux
		text := fmt.Sprint(info.Mode(), gid, info.ModTime().UnixNano())
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %x", sha256.Sum256(content))
		}
		all[path] = text
		return nil
	})
}

// harm describes the first thing that has happened to the canary, as a predicate of the
// RPC that did it. It is empty if there is none.
func (k *canary) harm() string {
	if m := k.mounts(); len(m) > 0 {
		return "mounted " + m[0].fsType + " at " + m[0].point
	}
	now, err := k.snapshot()
	if err != nil {
		return "left something that cannot be read: " + err.Error()
	}
	if _, made := now[k.marker]; made {
		return "ran it: the shell fragment created " + k.marker
	}
	// From the top down: a directory that is gone takes along what was in it.
	for _, path := range slices.Sorted(maps.Keys(k.was)) {
		if now[path] == "" {
			return "removed " + path
		}
	}
	for _, path := range slices.Sorted(maps.Keys(now)) {
		if k.was[path] == "" {
			return "created " + path
		}
	}
	for _, path := range slices.SortedFunc(maps.Keys(now), func(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) }) {
		if k.was[path] != now[path] {
			return "changed " + path
		}
	}
	return ""
}

func (k *canary) mounts() []mount {
	if runtime.GOOS != "linux" {
		return nil
	}
	return mounts(k.dir)
}

// remove removes the canary and what a driver has created beside it, one by one and
// never through a mount. What it has to leave, removeDir reports.
func (k *canary) remove() {
	var all []string
	_ = filepath.WalkDir(k.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeSymlink == 0 && k.run.mountBelow(path) != "" {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		all = append(all, path)
		return nil
	})
	for _, path := range slices.Backward(all) {
		_ = k.run.confined(path, (*os.Root).Remove)
	}
}
