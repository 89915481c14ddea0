package nodeops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/csikit/csikit/csitest/crash"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/mark"
	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/exec"
)

func init() {
	roles = append(roles, gate.WithRole("serve", serveRole))
}

// faultRequest is a request to serveRole: the field that is set.
type faultRequest struct {
	Stage              *StageFilesystemRequest
	Publish            *PublishFilesystemRequest
	PublishBlock       *PublishBlockRequest
	PublishShare       *PublishShareRequest
	Expand             string // a volume path
	Unpublish, Unstage string
}

type faultAnswer struct {
	Code codes.Code
	Text string
}

func (a faultAnswer) String() string { return fmt.Sprintf("%v %s", a.Code, a.Text) }

// serveRole is a driver that serves requests from standard input.
func serveRole() {
	n, err := New(Config{DeviceWait: -1})
	// Package os makes additional calls when it first starts a program.
	err = errors.Join(err, osexec.Command("true").Run())
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for err == nil {
		var r faultRequest
		if err = in.Decode(&r); err == nil {
			e := r.do(n)
			err = out.Encode(faultAnswer{status.Code(e), fmt.Sprint(e)})
		}
	}
	if !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (r faultRequest) do(n *Node) error {
	ctx := context.Background()
	switch {
	case r.Stage != nil:
		return n.StageFilesystem(ctx, *r.Stage)
	case r.Publish != nil:
		return n.PublishFilesystem(ctx, *r.Publish)
	case r.PublishBlock != nil:
		return n.PublishBlock(ctx, *r.PublishBlock)
	case r.PublishShare != nil:
		return n.PublishShare(ctx, *r.PublishShare)
	case r.Expand != "":
		_, err := n.Expand(ctx, ExpandRequest{VolumeID: "v", VolumePath: r.Expand})
		return err
	case r.Unpublish != "":
		return n.Unpublish(ctx, UnpublishRequest{VolumeID: "v", TargetPath: r.Unpublish})
	}
	return n.Unstage(ctx, UnstageRequest{VolumeID: "v", StagingTargetPath: r.Unstage})
}

// server is a running serveRole.
type server struct {
	*crash.Process
	t   *testing.T
	in  io.WriteCloser
	enc *json.Encoder
	dec *json.Decoder
}

func startServer(t *testing.T, opts ...crash.Option) *server {
	t.Helper()
	cmd := gate.RoleCommand(context.Background(), "serve")
	cmd.Env = append(cmd.Env,
		"GOMAXPROCS=2",             // else the runtime reads the limits of its cgroup
		"GORACE=atexit_sleep_ms=0") // else a second each
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	ok(t, err)
	out, err := cmd.StdoutPipe()
	ok(t, err)
	p, err := crash.Start(cmd, opts...)
	ok(t, err)
	t.Cleanup(func() {
		p.Kill()
		_ = p.Wait()
	})
	s := &server{p, t, in, json.NewEncoder(in), json.NewDecoder(out)}
	// Nothing is mounted there. Once it has answered, it has started.
	if a := s.ask(faultRequest{Unstage: t.TempDir()}); a.Code != codes.OK {
		t.Fatal(a)
	}
	return s
}

func (s *server) ask(r faultRequest) (a faultAnswer) {
	s.t.Helper()
	err := s.enc.Encode(r)
	if err == nil {
		err = s.dec.Decode(&a)
	}
	if err != nil {
		s.t.Fatalf("the driver does not answer: %v", err)
	}
	return a
}

// final reports whether kubelet takes an error with this code for the end: it then
// thinks that nothing is mounted, and does not call unpublish or unstage.
func final(c codes.Code) bool {
	return !slices.Contains([]codes.Code{codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted}, c)
}

// faultCase is an operation of which every call is made to fail.
type faultCase struct {
	name    string
	fsType  string // "" for raw block
	setup   func(*fixture)
	request func(*fixture) faultRequest
	done    func(*fixture) error // nil if the requested state is reached
}

const precious = "written before"

// makeFormatted creates a volume with data in the fixture.
func makeFormatted(fsType string) func(*fixture) {
	return func(f *fixture) {
		f.mustStage(fsType)
		f.write(f.staging+"/precious", precious)
		f.unstage()
	}
}

func makeStaged(fsType string) func(*fixture) {
	return func(f *fixture) {
		makeFormatted(fsType)(f)
		f.mustStage(fsType)
	}
}

func faultCases() []faultCase {
	stage := func(fsType string, change func(*StageFilesystemRequest)) func(*fixture) faultRequest {
		return func(f *fixture) faultRequest {
			r := f.stageRequest(fsType)
			if change != nil {
				change(&r)
			}
			return faultRequest{Stage: &r}
		}
	}
	publish := func(readOnly bool) func(*fixture) faultRequest {
		return func(f *fixture) faultRequest {
			return faultRequest{Publish: &PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: f.staging, TargetPath: f.target("p"),
				Device: Device{Path: f.dev.Path}, MountFlags: []string{"nosuid"}, ReadOnly: readOnly}}
		}
	}
	publishBlock := func(readOnly bool) func(*fixture) faultRequest {
		return func(f *fixture) faultRequest {
			return faultRequest{PublishBlock: &PublishBlockRequest{VolumeID: "v", Device: Device{Path: f.dev.Path}, TargetPath: f.target("p"), ReadOnly: readOnly}}
		}
	}
	unpublish := func(f *fixture) faultRequest { return faultRequest{Unpublish: f.target("p")} }
	mountOf := func(fsType string, at func(*fixture) string, words ...string) func(*fixture) error {
		return func(f *fixture) error { return f.shows(at(f), fsType, words...) }
	}
	staging := func(f *fixture) string { return f.staging }
	target := func(f *fixture) string { return f.target("p") }
	all := func(checks ...func(*fixture) error) func(*fixture) error {
		return func(f *fixture) error {
			var err error
			for _, c := range checks {
				err = errors.Join(err, c(f))
			}
			return err
		}
	}
	var cases []faultCase
	for _, c := range fsTable {
		fsType, grown := c.fsType, max(c.size+64*mib, 256*mib) // btrfs does not grow to less
		full := func(f *fixture) error {
			if full, err := isFull(fsType, f.staging, f.open()); err != nil || !full {
				return fmt.Errorf("uses all of the device: %v, %v", full, err)
			}
			return nil
		}
		cases = append(cases,
			faultCase{"stage fresh " + fsType, fsType, func(*fixture) {}, stage(fsType, nil), mountOf(fsType, staging, "rw")},
			faultCase{"stage formatted " + fsType, fsType, makeFormatted(fsType),
				stage(fsType, func(r *StageFilesystemRequest) { r.MountFlags = []string{"noatime", "nosuid"} }),
				mountOf(fsType, staging, "rw", "noatime", "nosuid")},
			faultCase{"stage read-only " + fsType, fsType, makeFormatted(fsType),
				stage(fsType, func(r *StageFilesystemRequest) { r.ReadOnly = true }), mountOf(fsType, staging, "ro")},
			faultCase{"stage interrupted " + fsType, fsType, func(f *fixture) {
				f.putMark(mark.New("v", fsType, c.size))
				f.mkfs(fsType)
			}, stage(fsType, nil), mountOf(fsType, staging, "rw")},
			faultCase{"stage with growth " + fsType, fsType, func(f *fixture) {
				makeFormatted(fsType)(f)
				f.resize(grown)
			}, stage(fsType, nil), all(mountOf(fsType, staging, "rw"), full)},
		)
		if fsType != "ext4" { // which grows mounted only with CAP_SYS_RESOURCE
			cases = append(cases, faultCase{"expand " + fsType, fsType, func(f *fixture) {
				makeStaged(fsType)(f)
				f.resize(grown)
			}, func(f *fixture) faultRequest {
				return faultRequest{Expand: f.staging}
			}, full})
		}
	}
	return append(cases,
		faultCase{"publish", "ext4", makeStaged("ext4"), publish(false), mountOf("ext4", target, "rw", "nosuid")},
		faultCase{"publish read-only", "ext4", makeStaged("ext4"), publish(true), mountOf("ext4", target, "ro", "nosuid")},
		faultCase{"publish block", "", putPrecious, publishBlock(false), func(f *fixture) error { return f.showsNode(false) }},
		faultCase{"publish block read-only", "", putPrecious, publishBlock(true), func(f *fixture) error { return f.showsNode(true) }},
		faultCase{"publish share", "ext4", func(f *fixture) {
			makeStaged("ext4")(f)
			helper(f.t.(*testing.T), "tmpfs", mounts)
		}, func(f *fixture) faultRequest {
			return faultRequest{PublishShare: &PublishShareRequest{VolumeID: "s", Source: "server:/share", FSType: "tmpfs", TargetPath: f.target("p"), ReadOnly: true}}
		}, func(f *fixture) error {
			if on := f.mounts(f.target("p")); len(on) != 1 || on[0].Source != "server:/share" || !on[0].ReadOnly() {
				return fmt.Errorf("at the target is %+v", on)
			}
			return nil
		}},
		faultCase{"stage again what shut itself down", "xfs", func(f *fixture) {
			makeStaged("xfs")(f)
			shutDown(f.t, f.staging)
		}, stage("xfs", nil), mountOf("xfs", staging, "rw")},
		faultCase{"unpublish", "ext4", func(f *fixture) {
			makeStaged("ext4")(f)
			ok(f.t, f.publish("p", nil))
		}, unpublish, nothingPublished},
		faultCase{"unpublish block", "", func(f *fixture) { ok(f.t, f.publishBlock("p", nil)) }, unpublish, nothingPublished},
		faultCase{"unpublish block read-only", "", func(f *fixture) {
			putPrecious(f)
			ok(f.t, f.publishBlock("p", func(r *PublishBlockRequest) { r.ReadOnly = true }))
		}, unpublish, nothingPublished},
		faultCase{"unstage", "ext4", makeStaged("ext4"), func(f *fixture) faultRequest { return faultRequest{Unstage: f.staging} },
			func(f *fixture) error { return f.nothingAt(f.staging) }},
	)
}

func putPrecious(f *fixture) { f.put(4096, []byte(precious)) }

// shows checks that only the volume's file system is mounted at a path, and how.
func (f *fixture) shows(path, fsType string, words ...string) error {
	on := f.mounts(path)
	if len(on) != 1 {
		return fmt.Errorf("%d mounts at %s, want 1", len(on), path)
	}
	m := on[0]
	if unix.Mkdev(m.Major, m.Minor) != f.dev.Rdev || m.FSType != fsType || m.Root != "/" {
		return fmt.Errorf("at %s is %+v", path, m)
	}
	for _, w := range words {
		if !slices.Contains(strings.Split(m.Options, ","), w) {
			return fmt.Errorf("options at %s are %s, want %s", path, m.Options, w)
		}
	}
	file := path + "/new"
	err := os.WriteFile(file, nil, 0o600)
	if slices.Contains(words, "ro") {
		if !errors.Is(err, unix.EROFS) {
			return fmt.Errorf("writing to what is read-only: %v", err)
		}
		return nil
	}
	return errors.Join(err, os.Remove(file))
}

func (f *fixture) showsNode(readOnly bool) error {
	on := f.mounts(f.target("p"))
	st, err := os.Stat(f.target("p"))
	if err != nil || len(on) != 1 || st.Mode().Type() != os.ModeDevice || st.Sys().(*syscall.Stat_t).Rdev != f.dev.Rdev {
		return fmt.Errorf("the target has %d mounts, is %v, %v", len(on), st, err)
	}
	if on[0].MountReadOnly() != readOnly || f.refusesWrites() != readOnly {
		return fmt.Errorf("mounted %s, the device refuses writes: %v, want %v", on[0].Options, f.refusesWrites(), readOnly)
	}
	return nil
}

func (f *fixture) nothingAt(path string) error {
	if on := f.mounts(path); len(on) > 0 {
		return fmt.Errorf("mounted: %+v", on)
	}
	return nil
}

// nothingPublished also holds for the device: what is gone must leave no flag.
func nothingPublished(f *fixture) error {
	err := f.nothingAt(f.target("p"))
	if _, e := os.Lstat(f.target("p")); !errors.Is(e, os.ErrNotExist) {
		err = errors.Join(err, fmt.Errorf("the target is still there (%v)", e))
	}
	if f.refusesWrites() {
		err = errors.Join(err, errors.New("the device refuses writes"))
	}
	return err
}

// faults counts what was made to fail.
type faults struct{ injected, succeeded, operator int }

// Every state-changing system call of every operation fails once. The operation then
// fails, or works around it; after a final code nothing is left that kubelet would not
// clean up; and a retry with the same driver succeeds.
func TestEveryCallFails(t *testing.T) {
	errnos := []syscall.Errno{unix.EIO}
	if torture() {
		errnos = append(errnos, unix.ENOMEM, unix.EPERM)
	}
	everyCallFails(t, errnos, func(faultCase) int { return 1 })
}

// The same for calls that only read.
func TestEveryReadFails(t *testing.T) {
	everyCallFails(t, []syscall.Errno{unix.ENOMEM}, func(c faultCase) int {
		if torture() || c.fsType == "" {
			return 1
		}
		return 47
	}, crash.WithReads())
}

func everyCallFails(t *testing.T, errnos []syscall.Errno, step func(faultCase) int, opts ...crash.Option) {
	gate.Root(t)
	var total faults
	for _, c := range faultCases() {
		t.Run(c.name, func(t *testing.T) {
			var calls []crash.Call
			t.Run("none", func(t *testing.T) { calls = c.run(t, 0, 0, &total, opts...) })
			for n := 1; n <= len(calls) && !t.Failed(); n += step(c) {
				if strings.HasSuffix(calls[n-1].Name, " returned") { // the return of a wait does not fail
					continue
				}
				for _, errno := range errnos {
					t.Run(fmt.Sprintf("%d %v", n, errno), func(t *testing.T) { c.run(t, n, errno, &total, opts...) })
				}
			}
		})
	}
	t.Logf("%d failures injected; %d times the operation succeeded all the same, %d times an operator must decide",
		total.injected, total.succeeded, total.operator)
}

// run does the operation while its n-th call fails, and returns its calls.
func (c faultCase) run(t *testing.T, n int, errno syscall.Errno, total *faults, opts ...crash.Option) []crash.Call {
	f := newFixture(t, sizeOf(c.fsType))
	c.setup(f)
	s := startServer(t, opts...)
	r := c.request(f)
	s.ArmFailure(n, errno)
	a := s.ask(r)
	s.Disarm()
	calls := s.Calls()
	if n > 0 {
		if !s.Failed() {
			// Programs and readers run beside each other, so that the calls vary: in order,
			// and at the end in number.
			if n > len(calls)*9/10 || strings.HasSuffix(calls[n-1].Name, " returned") {
				return calls
			}
			t.Fatalf("call %d did not come: %v", n, calls)
		}
		total.injected++
		t.Logf("%v fails with %v: %v", calls[n-1], errno, a)
	} else if a.Code != codes.OK {
		t.Fatal(a)
	}

	if a.Code == codes.OK {
		if n > 0 {
			total.succeeded++
		}
		if err := c.done(f); err != nil {
			t.Errorf("success, but %v", err)
		}
	}
	target := ""
	switch {
	case r.Stage != nil:
		target = f.staging
	case r.Publish != nil, r.PublishBlock != nil, r.PublishShare != nil:
		target = f.target("p")
		if _, err := os.Lstat(target); final(a.Code) && err == nil {
			t.Errorf("%v is final, and the target is still there", a.Code)
		}
	}
	if on := f.mounts(target); final(a.Code) && len(on) > 0 {
		t.Errorf("%v is final, and mounted is %+v", a.Code, on)
	}
	if caller := []codes.Code{codes.InvalidArgument, codes.NotFound, codes.AlreadyExists}; errno != unix.EPERM && slices.Contains(caller, a.Code) {
		t.Errorf("%v blames the caller", a.Code)
	}

	if published := len(f.mounts(f.target("p"))) > 0; strings.HasSuffix(c.name, "block read-only") && published != f.refusesWrites() {
		t.Errorf("published read-only: %v, the device refuses writes: %v", published, !published)
	}

	switch a = s.ask(r); {
	case a.Code == codes.FailedPrecondition && c.name == "stage fresh "+c.fsType && strings.Contains(a.Text, "zero the device"):
		total.operator++
		t.Logf("an operator must decide: %v", a)
		return calls
	case a.Code != codes.OK:
		t.Errorf("again: %v", a)
	default:
		if err := c.done(f); err != nil {
			t.Errorf("done again, but %v", err)
		}
	}
	for _, r := range []faultRequest{{Unpublish: f.target("p")}, {Unstage: f.staging}} {
		if a := s.ask(r); a.Code != codes.OK {
			t.Errorf("take down: %v", a)
		}
	}
	ok(t, s.in.Close())
	if err := s.Wait(); err != nil {
		t.Errorf("the driver: %v", err)
	}
	c.checkEnd(f)
	return calls
}

// checkEnd checks what is left of the operation, and the data.
func (c faultCase) checkEnd(f *fixture) {
	f.t.Helper()
	table, err := mountapi.Table()
	ok(f.t, err)
	for _, m := range table {
		if unix.Mkdev(m.Major, m.Minor) == f.dev.Rdev || strings.HasPrefix(m.MountPoint, filepath.Dir(f.staging)) {
			f.t.Errorf("still mounted: %+v", m)
		}
	}
	if err := nothingPublished(f); err != nil {
		f.t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "csikit-mount-*")); err != nil || len(left) > 0 {
		f.t.Errorf("left: %v, %v", left, err)
	}
	if f.t.Failed() {
		return
	}
	image, err := os.Open(f.image)
	ok(f.t, err)
	defer image.Close()
	if c.fsType == "" {
		text := make([]byte, len(precious))
		_, err := image.ReadAt(text, 4096)
		if want := c.name != "unpublish block"; err != nil || want && string(text) != precious {
			f.t.Errorf("the device holds %q, %v", text, err)
		}
		return
	}
	f.mustStage(c.fsType)
	if text, err := os.ReadFile(f.staging + "/precious"); string(text) != precious && !strings.HasPrefix(c.name, "stage fresh") && !strings.HasPrefix(c.name, "stage interrupted") {
		f.t.Errorf("the volume holds %q, %v", text, err)
	}
	f.converge(c.fsType, "at the end")
}

func sizeOf(fsType string) int64 {
	for _, c := range fsTable {
		if c.fsType == fsType {
			return c.size
		}
	}
	return 8 * mib
}

// faultyMkfs runs mkfs so that its n-th call fails.
type faultyMkfs struct {
	exec.Interface
	t       *testing.T
	program string
	n       int
	p       *crash.Process
}

func (x *faultyMkfs) CommandContext(ctx context.Context, name string, args ...string) exec.Cmd {
	if name != x.program {
		return x.Interface.CommandContext(ctx, name, args...)
	}
	return faultyCmd{x.Interface.CommandContext(ctx, name, args...).(cmd), x}
}

type faultyCmd struct {
	cmd
	x *faultyMkfs
}

func (c faultyCmd) Run() error {
	c.x.p = startArmed(c.x.t, c.Cmd.Cmd, func(p *crash.Process) { p.ArmFailure(c.x.n, unix.EIO) })
	return wrapExit(c.Ended(c.x.p.Wait()))
}

// startArmed starts a program whose first call counts: a shell waits for arm to
// return before it becomes that program.
func startArmed(t *testing.T, c *osexec.Cmd, arm func(*crash.Process)) *crash.Process {
	t.Helper()
	shell := osexec.Command("sh", append([]string{"-c", `read _ <&3; exec 3<&-; exec "$0" "$@"`}, c.Args...)...)
	c.Path, c.Args, c.Err = shell.Path, shell.Args, shell.Err
	gate, in, err := os.Pipe()
	ok(t, err)
	c.ExtraFiles = []*os.File{gate}
	p, err := crash.Start(c)
	ok(t, err)
	ok(t, gate.Close())
	arm(p)
	ok(t, in.Close())
	return p
}

// Every state-changing call of mkfs fails once. It may fail, also at the end when
// everything looks complete, continue, or try something else.
func TestEveryCallOfMkfsFails(t *testing.T) {
	gate.Root(t)
	step := 1
	if !torture() {
		step = 17
	}
	for _, c := range fsTable {
		t.Run(c.fsType, func(t *testing.T) {
			var total faults
			failAt := func(t *testing.T, n int) (calls int) {
				f := newFixture(t, c.size)
				x := &faultyMkfs{newRunner(), t, filesystems[c.fsType].mkfs[0], n, nil}
				good := f.node
				var err error
				f.node, err = New(Config{DeviceWait: -1, Exec: x})
				ok(t, err)
				err = f.stage(f.stageRequest(c.fsType))
				calls = len(x.p.Calls())
				what := "no call fails"
				if n > 0 {
					if !x.p.Failed() {
						t.Fatalf("only %d calls", calls)
					}
					what = fmt.Sprintf("%v fails: %v", x.p.Calls()[n-1], err)
					t.Log(what)
					total.injected++
				}
				if err == nil && n > 0 {
					total.succeeded++
				}
				if on := f.mounts(f.staging); err != nil && len(on) > 0 {
					t.Errorf("mounted: %+v", on)
				}
				f.unstage()
				f.node = good
				f.reattach(f.image)
				f.converge(c.fsType, what)
				return calls
			}
			calls := 0
			t.Run("none", func(t *testing.T) { calls = failAt(t, 0) })
			for n := 1; n <= calls; n += step {
				t.Run(fmt.Sprint(n), func(t *testing.T) { failAt(t, n) })
			}
			t.Logf("%d failures injected; mkfs succeeded all the same %d times", total.injected, total.succeeded)
		})
	}
}
