package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == cageArg {
		cageMain(os.Args[2], os.Args[3])
	}
	os.Exit(m.Run())
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if strings.Contains(os.Getenv("CSIKIT_TEST_REQUIRE"), "root") {
		t.Fatal("root is required")
	}
	t.Skip("needs root")
}

// shortDir is a directory whose path is short and known to the mount table.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cage")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// What runs in a cage changes nothing outside, and nothing is left of it.
func TestCage(t *testing.T) {
	needRoot(t)
	base := shortDir(t)
	precious, dir := filepath.Join(base, "precious"), filepath.Join(base, "dir")
	if err := errors.Join(os.WriteFile(precious, nil, 0o600), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, command, want string }{
		{"writes", `echo x >"$DIR/file" && cat "$DIR/file"`, "x"},
		{"removes", `rm -f "$PRECIOUS" 2>/dev/null || echo refused`, "refused"},
		{"makes a file", `{ echo >/etc/csikit-mutant; } 2>/dev/null || echo refused`, "refused"},
		{"sets the kernel", `{ echo 1 >/proc/sys/vm/drop_caches; } 2>/dev/null || echo refused`, "refused"},
		{"sees processes", `ls -d /proc/[0-9]* | wc -l | awk '{ print $1 < 10 }'`, "1"},
		{"sees disks", `ls /dev | grep -v -x -e null -e zero -e full -e '[u]*random' -e 'loop-control' -e btrfs-control -e fuse -e 'loop[0-9]*' -e fd -e console || echo none`, "none"},
		{"leaves a process", `sleep 600 & echo done`, "done"},
		{"leaves a loop device that is mounted", `truncate -s 16M "$DIR/cage-disk" && mke2fs -q "$DIR/cage-disk" && mkdir "$DIR/at" && mount -o loop "$DIR/cage-disk" "$DIR/at" && echo done`, "done"},
		{"leaves a loop device on another one", `truncate -s 16M "$DIR/cage-disk" && mke2fs -q "$DIR/cage-disk" && mkdir "$DIR/at" &&
			unshare -m sh -c 'mount -o loop "$DIR/cage-disk" "$DIR/at" && truncate -s 1M "$DIR/at/nested" && losetup -f "$DIR/at/nested"' && echo done`, "done"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			env := append(os.Environ(), "DIR="+dir, "PRECIOUS="+precious, "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := inCage(ctx, dir, test.command, env, &out); err != nil || strings.TrimSpace(out.String()) != test.want {
				t.Errorf("%v, %q; want %q", err, out.String(), test.want)
			}
			if _, err := os.Stat(precious); err != nil {
				t.Error(err)
			}
			files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
			for _, file := range files {
				// Without its mount a file has another path.
				if backing, _ := os.ReadFile(file); strings.Contains(string(backing), "/cage-disk") {
					t.Errorf("%s is left: %s", file, backing)
				}
			}
			if err != nil {
				t.Error(err)
			}
			if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
				t.Errorf("files %v, %v", files, err)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := inCage(ctx, dir, "sleep 600", os.Environ(), &bytes.Buffer{}); err == nil {
		t.Error("no error at the end of the time")
	}
	var exit *exec.ExitError
	if err := inCage(t.Context(), dir, "exit 3", os.Environ(), &bytes.Buffer{}); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("error is %v, want exit status 3", err)
	}
}

const small = `package main

import "os"

func abs(n int) int {
	if n < 0 {
		return -n
	}
	return n
}

func main() {
	if abs(-2) != 2 {
		os.Exit(1)
	}
}
`

// A run from the source to the report, a second one that has nothing to do, and one with
// explanations.
func TestRun(t *testing.T) {
	needRoot(t)
	dir, work := module(t, small), shortDir(t)
	file := filepath.Join(work, "explained.tsv")
	args := []string{"-C", dir, "-work", work, "-explained", file, "-skip", ":main$", "-build", `go build -overlay "$OVERLAY" -o "$OUT/p" .`, "-run", `"$OUT/p"`, "."}
	runIt := func() (bool, string) {
		t.Helper()
		var out bytes.Buffer
		ok, err := run(t.Context(), args, &out)
		if err != nil {
			t.Fatal(err)
		}
		return ok, out.String()
	}
	// n < 0 has three mutants. That 0 is negated is seen by nobody.
	ok, out := runIt()
	if ok || !strings.Contains(out, "3 of 3 mutants: 1 killed, 0 timed out, 2 survived") {
		t.Fatalf("%t:\n%s", ok, out)
	}
	var ids []string
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "survived" {
			ids = append(ids, f[1])
		}
	}
	if len(ids) != 2 {
		t.Fatalf("%q in:\n%s", ids, out)
	}
	explain := func(lines ...string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	explain(ids[0]+"\tunseen\tabs\tnothing calls it so", ids[1]+"\tequivalent\tabs\t-0 is 0")
	if ok, out = runIt(); !ok || strings.Contains(out, "1/3") || !strings.Contains(out, "1 killed, 0 timed out, 0 survived, 1 not seen from outside, 1 equivalent") {
		t.Errorf("%t:\n%s", ok, out)
	}
	explain(ids[0]+"\tunseen\tabs\tx", ids[1]+"\tunseen\tabs\tx", "01234567\tequivalent\tabs\tgone")
	if ok, out = runIt(); ok || !strings.Contains(out, "no longer there: 01234567") {
		t.Errorf("%t:\n%s", ok, out)
	}
	explain(ids[0] + "\tmaybe\tabs\tx")
	if _, err := run(t.Context(), args, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "explained.tsv:1") {
		t.Error(err)
	}
	// What fails without a mutation finds nothing.
	explain("# none")
	args[len(args)-2] = "exit 1"
	if _, err := run(t.Context(), args, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "without a mutation") {
		t.Error(err)
	}
}
