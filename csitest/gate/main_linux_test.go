package gate_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csikit/csikit/csitest/gate"
	"golang.org/x/sys/unix"
)

const envFixture = "GATE_TEST_FIXTURE"

// TestFixture is what TestLeaks and others run in a process of their own. Each
// fixture prints what the parent needs to know on a separate line.
func TestFixture(t *testing.T) {
	fixture := os.Getenv(envFixture)
	if fixture == "" {
		t.Skip("run by other tests in a separate process")
	}
	run := fixtures[fixture]
	if run == nil {
		t.Fatalf("no fixture %q", fixture)
	}
	run(t, os.TempDir())
}

var fixtures = map[string]func(t *testing.T, dir string){
	"nothing": func(*testing.T, string) {},
	"failure": func(t *testing.T, _ string) { t.Error("fails on purpose") },
	"mount": func(t *testing.T, dir string) {
		gate.UserNS(t)
		point := filepath.Join(dir, "a place")
		must(t, os.Mkdir(point, 0o700))
		must(t, unix.Mount("stray", point, "tmpfs", 0, ""))
		must(t, unix.Mount("stray2", point, "tmpfs", 0, ""))
	},
	"descriptor": func(t *testing.T, dir string) {
		must(t, os.WriteFile(filepath.Join(dir, "stray-file"), nil, 0o600))
		_, err := unix.Open(filepath.Join(dir, "stray-file"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(t, err)
	},
	"child": func(t *testing.T, _ string) { must(t, exec.Command("sleep", "1000").Start()) },
	"zombie": func(t *testing.T, _ string) {
		cmd := exec.Command("true")
		must(t, cmd.Start())
		must(t, unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil))
	},
	"orphan": func(t *testing.T, _ string) {
		out, err := exec.Command("sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!").Output()
		must(t, err)
		fmt.Printf("said %s", out)
	},
	"ending orphan": func(t *testing.T, _ string) {
		must(t, exec.Command("sh", "-c", "sleep 0.2 >/dev/null 2>&1 &").Run())
	},
	"loop": func(t *testing.T, dir string) {
		gate.Root(t)
		attach(t, filepath.Join(dir, "stray-image"))
	},
	"loop and panic": func(t *testing.T, dir string) {
		gate.Root(t)
		attach(t, filepath.Join(dir, "stray-image"))
		panic("on purpose")
	},
	"loop in a mount and SIGKILL": func(t *testing.T, dir string) {
		gate.Root(t)
		point := filepath.Join(dir, "mnt")
		must(t, os.Mkdir(point, 0o700))
		must(t, unix.Mount("stray", point, "tmpfs", 0, ""))
		attach(t, filepath.Join(point, "stray-image"))
		must(t, unix.Kill(os.Getpid(), unix.SIGKILL))
	},
	"wait for a signal": func(_ *testing.T, dir string) {
		fmt.Printf("said %s\n", dir)
		time.Sleep(time.Minute) // select {} would be a deadlock to the runtime
	},
	"surroundings": func(t *testing.T, _ string) {
		ns, err := os.Readlink("/proc/self/ns/mnt")
		must(t, err)
		fmt.Printf("said %s %d\n", ns, os.Getuid())
	},
	"userns": func(t *testing.T, dir string) {
		gate.UserNS(t)
		point := filepath.Join(dir, "mnt")
		must(t, os.Mkdir(point, 0o700))
		must(t, unix.Mount("tmpfs", point, "tmpfs", 0, ""))
		must(t, unix.Unmount(point, 0))
		fmt.Println("said mounted")
	},
	"root": func(t *testing.T, _ string) {
		gate.Root(t)
		fmt.Println("said root")
	},
	"capability": func(t *testing.T, _ string) {
		gate.Capability(t, unix.CAP_SYS_ADMIN)
		fmt.Println("said capable")
	},
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func attach(t *testing.T, image string) {
	t.Helper()
	must(t, os.WriteFile(image, make([]byte, 1<<20), 0o600))
	out, err := exec.Command("losetup", "--show", "-f", image).Output()
	must(t, err)
	fmt.Printf("said %s", out)
}

// runFixture runs a fixture in a separate test process and returns its exit
// code, what the fixture said and everything that was printed.
func runFixture(t *testing.T, cmd *exec.Cmd, fixture string, env ...string) (code int, said, output string) {
	t.Helper()
	cmd.Args = append(cmd.Args, "-test.run=^TestFixture$", "-test.v")
	cmd.Env = append(append(os.Environ(), envFixture+"="+fixture), env...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if s, ok := strings.CutPrefix(line, "said "); ok {
			said = strings.TrimSpace(s)
		}
	}
	return cmd.ProcessState.ExitCode(), said, string(out)
}

func TestLeaks(t *testing.T) {
	for n, test := range []struct {
		fixture string
		gate    func(testing.TB)
		code    int
		want    []string // in the output
	}{
		{fixture: "nothing", code: 0},
		{fixture: "failure", code: 1},
		{fixture: "mount", gate: gate.UserNS, code: 1, want: []string{
			"left behind: mount of stray2 (tmpfs) at ", "left behind: mount of stray (tmpfs) at ", "a place (removed now)"}},
		{fixture: "descriptor", code: 1, want: []string{"left behind: open descriptor ", "stray-file"}},
		{fixture: "child", code: 1, want: []string{"left behind: child process ", "(sleep)", "(removed now)"}},
		{fixture: "zombie", code: 1, want: []string{"left behind: child process ", "(true)", "(removed now)"}},
		{fixture: "orphan", gate: gate.UserNS, code: 1, want: []string{"left behind: child process ", "(sleep)", "(removed now)"}},
		{fixture: "ending orphan", code: 0},
		{fixture: "loop", gate: gate.Root, code: 1, want: []string{"left behind: loop device /dev/loop", " (removed now)"}},
		{fixture: "loop and panic", gate: gate.Root, code: 2, want: []string{
			"on purpose", "left behind: loop device /dev/loop", " (removed now)"}},
		{fixture: "loop in a mount and SIGKILL", gate: gate.Root, code: 128 + 9, want: []string{
			"ended by signal: killed", "left behind: loop device /dev/loop", " (removed now)"}},
	} {
		t.Run(test.fixture, func(t *testing.T) {
			if test.gate != nil {
				test.gate(t)
			}
			if strings.HasPrefix(test.fixture, "loop") {
				gate.Tools(t, "losetup")
			}
			t.Parallel()
			// Not t.TempDir: the kernel keeps 63 bytes of a backing file's name.
			dir := filepath.Join(os.TempDir(), strconv.Itoa(n))
			must(t, os.Mkdir(dir, 0o700))
			t.Cleanup(func() { must(t, os.Remove(dir)) })
			code, said, out := runFixture(t, exec.Command(os.Args[0]), test.fixture, "TMPDIR="+dir)
			if code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			for _, want := range test.want {
				if !strings.Contains(out, want) {
					t.Errorf("output lacks %q", want)
				}
			}
			if len(test.want) == 0 && strings.Contains(out, "left behind") {
				t.Error("a leak was found")
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
				t.Errorf("run directory is still there: %v, %v", entries, err)
			}
			if name, ok := strings.CutPrefix(said, "/dev/loop"); ok {
				backing, _ := os.ReadFile("/sys/block/loop" + name + "/loop/backing_file")
				// Another test may have taken the number.
				if strings.HasPrefix(string(backing), dir) || strings.HasPrefix(string(backing), "/stray-image") {
					t.Errorf("%s still serves %s", said, backing)
				}
			}
			if test.fixture == "orphan" {
				if _, err := os.Stat("/proc/" + said); err == nil || said == "" {
					t.Errorf("process %q is still there", said)
				}
			}
			if t.Failed() {
				t.Logf("output:\n%s", out)
			}
		})
	}
}

func TestSignalsReachTheTests(t *testing.T) {
	for _, reader := range []string{"stays", "goes away"} {
		t.Run("reader of the output "+reader, func(t *testing.T) {
			dir := t.TempDir()
			cmd := exec.Command(os.Args[0], "-test.run=^TestFixture$")
			cmd.Env = append(os.Environ(), envFixture+"=wait for a signal", "TMPDIR="+dir)
			output, err := cmd.StdoutPipe()
			must(t, err)
			cmd.Stderr = cmd.Stdout
			must(t, cmd.Start())
			line, err := bufio.NewReader(output).ReadString('\n')
			must(t, err)
			if rundir := strings.TrimSpace(strings.TrimPrefix(line, "said ")); filepath.Dir(rundir) != dir {
				t.Errorf("run directory is %q, want one below %s", rundir, dir)
			}
			if reader == "goes away" { // as go test does when it is interrupted
				must(t, output.Close())
			}
			must(t, cmd.Process.Signal(syscall.SIGTERM))
			rest, _ := io.ReadAll(output)
			err = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 128+15 {
				t.Errorf("after SIGTERM: %v, want exit code 143; output:\n%s", err, rest)
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
				t.Errorf("run directory is still there: %v, %v", entries, err)
			}
		})
	}
}

func TestMountNamespaceIsPrivate(t *testing.T) {
	gate.UserNS(t)
	ours, err := os.Readlink("/proc/self/ns/mnt")
	must(t, err)
	_, said, out := runFixture(t, exec.Command(os.Args[0]), "surroundings")
	theirs, uid, _ := strings.Cut(said, " ")
	if theirs == ours || theirs == "" || uid != "0" {
		t.Errorf("nested run in mount namespace %q with uid %q, ours is %q\n%s", theirs, uid, ours, out)
	}
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	if strings.Contains(string(mountinfo), " shared:") || strings.Contains(string(mountinfo), " master:") {
		t.Errorf("mounts propagate:\n%s", mountinfo)
	}
}

// As nobody: the user namespace tier runs, the root tier skips and says why, and
// requiring it turns that into a failure.
func TestUnprivileged(t *testing.T) {
	gate.UserNS(t)
	// The directory in which go test builds is closed to others.
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755)) // closed to others as well
	exe, tmp := filepath.Join(dir, "gate.test"), filepath.Join(dir, "tmp")
	data, err := os.ReadFile(os.Args[0])
	must(t, err)
	must(t, os.WriteFile(exe, data, 0o755))
	must(t, os.Mkdir(tmp, 0o755))
	const nobody = 65534
	if err := os.Chown(tmp, nobody, nobody); err != nil {
		t.Skipf("needs root of the initial user namespace, to become nobody: %v", err)
	}
	as := func(cmd *exec.Cmd) *exec.Cmd {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		return cmd
	}
	for _, test := range []tierTest{
		{fixture: "userns", require: "userns", said: "mounted"},
		{fixture: "mount", code: 1, want: []string{"left behind: mount of stray "}},
		{fixture: "root", want: []string{"gate root: ", "gate root skipped 1 tests"}},
		{fixture: "root", require: "userns,root", code: 1, want: []string{"required by CSIKIT_TEST_REQUIRE"}},
		{fixture: "capability", want: []string{"gate capability: ", "initial", "gate capability skipped 1 tests"}},
	} {
		test.run(t, as(exec.Command(exe)), tmp)
	}
}

// Where no namespace can be made the tests still run, and leaks are still found.
func TestWithoutNamespaces(t *testing.T) {
	gate.UserNS(t)
	gate.Tools(t, "setpriv")
	for _, test := range []tierTest{
		{fixture: "nothing"},
		{fixture: "descriptor", code: 1, want: []string{"stray-file"}},
		{fixture: "child", code: 1, want: []string{"child process"}},
		{fixture: "userns", want: []string{"gate userns: no private mount namespace", "user.max_user_namespaces"}},
		{fixture: "userns", require: "userns", code: 1, want: []string{"required by CSIKIT_TEST_REQUIRE"}},
	} {
		// The limit counts per user namespace: set in a new one, it holds there only.
		cmd := exec.Command("sh", "-c", `echo 0 > /proc/sys/user/max_user_namespaces &&
			exec setpriv --bounding-set=-sys_admin "$0" "$@"`, os.Args[0])
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		test.run(t, cmd, t.TempDir())
	}
}

// A tierTest runs a fixture in a process that can do less than this one.
type tierTest struct {
	fixture, require string
	code             int
	said             string
	want             []string // in the output
}

func (test tierTest) run(t *testing.T, cmd *exec.Cmd, tmp string) {
	t.Run(test.fixture+" requiring "+test.require, func(t *testing.T) {
		code, said, out := runFixture(t, cmd, test.fixture, "TMPDIR="+tmp, "CSIKIT_TEST_REQUIRE="+test.require)
		if code != test.code || said != test.said {
			t.Errorf("exit code %d, said %q; want %d, %q", code, said, test.code, test.said)
		}
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("output lacks %q", want)
			}
		}
		if entries, err := os.ReadDir(tmp); err != nil || len(entries) > 0 {
			t.Errorf("run directory is still there: %v, %v", entries, err)
		}
		if t.Failed() {
			t.Logf("output:\n%s", out)
		}
	})
}

func TestGatesHere(t *testing.T) {
	t.Run("userns", func(t *testing.T) {
		gate.UserNS(t)
		point := t.TempDir()
		must(t, unix.Mount("tmpfs", point, "tmpfs", 0, ""))
		must(t, unix.Unmount(point, 0))
	})
	t.Run("root", func(t *testing.T) {
		gate.Root(t)
		gate.Capability(t, unix.CAP_SYS_ADMIN)
	})
	t.Run("a module that does not exist", func(t *testing.T) {
		r := recorder{TB: t}
		gate.Modules(&r, "no_such_module")
		if !strings.Contains(r.skipped, "no no_such_module") {
			t.Errorf("skipped with %q", r.skipped)
		}
	})
	t.Run("a capability that is not held", func(t *testing.T) {
		r := recorder{TB: t}
		gate.Capability(&r, 63)
		if !slices.Contains([]bool{strings.Contains(r.skipped, "63"), strings.Contains(r.skipped, "user namespace")}, true) {
			t.Errorf("skipped with %q", r.skipped)
		}
	})
}
