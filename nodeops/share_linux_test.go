package nodeops

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// helper is a mount helper on PATH that runs a script: $1 is the source, $2 the
// target, and $4 the options. What it mounts is a tmpfs with that source.
func helper(t *testing.T, fsType, script string) {
	t.Helper()
	bin := t.TempDir()
	ok(t, os.WriteFile(filepath.Join(bin, "mount."+fsType), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

const mounts = `mount -i -n -t tmpfs ${4:+-o "$4"} "$1" "$2"`

func (n *Node) share(t *testing.T, target string, change func(*PublishShareRequest)) error {
	t.Helper()
	r := PublishShareRequest{VolumeID: "v", Source: "server:/share", FSType: "tmpfs", TargetPath: target}
	if change != nil {
		change(&r)
	}
	return n.PublishShare(t.Context(), r)
}

func TestPublishShare(t *testing.T) {
	n, _, pods := staged(t)
	helper(t, "tmpfs", mounts)
	target := filepath.Join(pods, "p")
	request := func(r *PublishShareRequest) {
		r.ReadOnly = true
		r.MountFlags = []string{"nosuid,nodev", "size=1m"}
	}
	for range 2 {
		ok(t, n.share(t, target, request))
	}
	table, err := readTable()
	ok(t, err)
	on := table.at(target)
	if len(on) != 1 || !on[0].ReadOnly() || on[0].Source != "server:/share" || !strings.Contains(on[0].Options, "nosuid,nodev") || !strings.Contains(on[0].SuperOptions, "size=1024k") {
		t.Errorf("mounted is %+v", on)
	}
	for _, tt := range []struct {
		change func(*PublishShareRequest)
		want   string
	}{
		{func(r *PublishShareRequest) { r.ReadOnly = false }, "access is read-only, want read-write"},
		{func(r *PublishShareRequest) { r.Source = "other:/share" }, "source is server:/share, want other:/share"},
		{func(r *PublishShareRequest) { r.FSType = "nfs" }, "file system type is tmpfs, want nfs"},
		{func(r *PublishShareRequest) { r.MountFlags = []string{"noexec"} }, "mount flag noexec is not set"},
	} {
		wantKind(t, n.share(t, target, func(r *PublishShareRequest) { request(r); tt.change(r) }), csierr.Conflict, tt.want)
	}
	ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}))
	if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target is still there (%v)", err)
	}
}

func TestShareRefusesNonsense(t *testing.T) {
	n, err := New(Config{})
	ok(t, err)
	for _, change := range []func(*PublishShareRequest){
		func(r *PublishShareRequest) { r.Source = "" },
		func(r *PublishShareRequest) { r.Source = "-o" },
		func(r *PublishShareRequest) { r.Source = "a\nb" },
		func(r *PublishShareRequest) { r.FSType = "" },
		func(r *PublishShareRequest) { r.FSType = "../nfs" },
		func(r *PublishShareRequest) { r.FSType = "nfs -x" },
		func(r *PublishShareRequest) { r.FSType = "." },
		func(r *PublishShareRequest) { r.TargetPath = "p" },
		func(r *PublishShareRequest) { r.MountFlags = []string{"bind"} },
		func(r *PublishShareRequest) { r.MountFlags = []string{"hard,bg"} },
		func(r *PublishShareRequest) { r.Sensitive = []string{`pass="hunter2`} },
	} {
		err := n.share(t, "/nowhere/p", change)
		wantKind(t, err, csierr.Invalid)
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("a secret is in %q", err)
		}
	}
}

// What the helper is given, and what of it is seen.
func TestShareOptions(t *testing.T) {
	_, _, pods := staged(t)
	var log bytes.Buffer
	n, err := New(Config{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	ok(t, err)
	args := filepath.Join(t.TempDir(), "args")
	helper(t, "secretfs", fmt.Sprintf(`printf '%%s\n' "$@" > %s; echo "cannot log in with hunter2 (password=hunter2) as joe, pin 12,34" >&2; exit 32`, args))
	target := filepath.Join(pods, "p")
	err = n.share(t, target, func(r *PublishShareRequest) {
		r.FSType, r.ReadOnly = "secretfs", true
		r.MountFlags = []string{"noexec", "vers=3.0", `context="system_u:object_r:t:s0:c1,c2"`, "Passwd=swordfish"}
		r.Sensitive = []string{"password=hunter2", `pin="12,34"`}
	})
	wantKind(t, err, csierr.Internal, "exited with status 32", "cannot log in")
	got, e := os.ReadFile(args)
	ok(t, e)
	want := "server:/share\n" + target + "\n-o\nro,noexec,vers=3.0,context=\"system_u:object_r:t:s0:c1,c2\",Passwd=swordfish,password=hunter2,pin=\"12,34\"\n"
	if string(got) != want {
		t.Errorf("the helper was given\n%s\nwant\n%s", got, want)
	}
	for _, secret := range []string{"hunter2", "12,34", "swordfish"} {
		for where, text := range map[string]string{"log": log.String(), "error": err.Error()} {
			if strings.Contains(text, secret) {
				t.Errorf("%q is in the %s: %s", secret, where, text)
			}
		}
	}
	if !strings.Contains(log.String(), "vers=3.0") {
		t.Errorf("the log does not show what was run: %s", log.String())
	}
	if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target is still there (%v)", err)
	}
}

func TestHider(t *testing.T) {
	hide := hider([]string{"username=joe", "password=joe1234", "joe1"})
	if got := hide.Replace("joe joe1 joe1234 password=joe1234"); got != "(hidden) (hidden) (hidden) password=(hidden)" {
		t.Errorf("shown is %q", got)
	}
}

func TestShareHelperIsMissing(t *testing.T) {
	n, _, pods := staged(t)
	target := filepath.Join(pods, "p")
	wantKind(t, n.share(t, target, func(r *PublishShareRequest) { r.FSType = "nosuchfs" }), csierr.Internal, "mount.nosuchfs", "PATH")
	if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target is still there (%v)", err)
	}
}

// mount.nfs and mount.cifs report a missing share only by these texts.
func TestShareIsMissing(t *testing.T) {
	n, _, pods := staged(t)
	for answer, kind := range map[string]csierr.Kind{
		"mount.nfs: mounting server:/share failed, reason given by server: No such file or directory": csierr.NotFound,
		"mount error(2): No such file or directory":                                                   csierr.NotFound,
		"mount.nfs: access denied by server while mounting server:/share":                             csierr.Internal,
	} {
		helper(t, "tmpfs", "echo '"+answer+"' >&2; exit 32")
		wantKind(t, n.share(t, filepath.Join(pods, "p"), nil), kind, answer)
	}
}

// mount(8): a type with a dot is a file system of FUSE's.
func TestShareHelperOfASubtype(t *testing.T) {
	n, _, pods := staged(t)
	helper(t, "fuse", `[ "$*" = "server:/share $2 -t fuse.somefs" ] || exit 9; mount -i -n -t tmpfs "$1" "$2"`)
	err := n.share(t, filepath.Join(pods, "p"), func(r *PublishShareRequest) { r.FSType = "fuse.somefs" })
	wantKind(t, err, csierr.Internal, "mounted another source or configuration", "file system type is tmpfs")
}

// What a helper says does not count, but what is mounted.
func TestShareHelperReportsWrongResult(t *testing.T) {
	for _, tt := range []struct{ name, script, want string }{
		{"mounts nothing", "exit 0", "nothing is mounted"},
		{"mounts something else", `mount -i -n -t tmpfs other:/share "$2"`, "source is other:/share"},
		{"forgets an option", `mount -i -n -t tmpfs "$1" "$2"`, "access is read-write"},
		{"mounts twice", mounts + "; " + mounts, "number of stacked mounts is 2"},
		{"fails half-way", `mount -i -n -t tmpfs other:/share "$2"; exit 1`, "status 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, _, pods := staged(t)
			helper(t, "tmpfs", tt.script)
			target := filepath.Join(pods, "p")
			wantKind(t, n.share(t, target, func(r *PublishShareRequest) { r.ReadOnly = true }), csierr.Internal, tt.want)
			if got := mountedTypes(t, target); len(got) > 0 {
				t.Errorf("mounted is %v", got)
			}
			if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the target is still there (%v)", err)
			}
		})
	}
	t.Run("fails after success", func(t *testing.T) {
		n, _, pods := staged(t)
		helper(t, "tmpfs", mounts+"; exit 1")
		ok(t, n.share(t, filepath.Join(pods, "p"), nil))
	})
}

// kubernetes-csi/csi-driver-nfs#1271: one mount.nfs that had timed out, but not ended,
// blocked every later mount of that server for hours.
func TestShareHelperThatHangs(t *testing.T) {
	_, _, pods := staged(t)
	pids := filepath.Join(t.TempDir(), "pids")
	// Its children ignore signals, and survive it.
	helper(t, "tmpfs", fmt.Sprintf(`trap '' TERM INT HUP; sh -c 'trap "" TERM; echo $$ >> %[1]s; sleep 600' & sleep 600 & echo $! $$ >> %[1]s; wait`, pids))
	target := filepath.Join(pods, "p")
	var text []byte
	for timeout := 2 * time.Second; len(bytes.Fields(text)) < 3; timeout *= 2 { // a slow machine has not started all of them yet
		if timeout > time.Minute {
			t.Fatalf("started: %q", text)
		}
		n, err := New(Config{HelperTimeout: timeout})
		ok(t, err)
		err = n.share(t, target, nil)
		if status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "was killed") {
			t.Errorf("error is %v, want DEADLINE_EXCEEDED", err)
		}
		if isPending(err) {
			t.Error("work is still in flight")
		}
		text, _ = os.ReadFile(pids)
	}
	for _, pid := range strings.Fields(string(text)) {
		if state, err := os.ReadFile("/proc/" + pid + "/stat"); err == nil && !bytes.Contains(state, []byte(") Z ")) {
			t.Errorf("process %s still runs: %s", pid, state)
		}
	}
	if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target is still there (%v)", err)
	}
	t.Run("once mounted", func(t *testing.T) {
		helper(t, "tmpfs", mounts+"; sleep 600")
		for timeout := 2 * time.Second; ; timeout *= 2 { // a slow machine has not come to the mount yet
			n, err := New(Config{HelperTimeout: timeout})
			ok(t, err)
			if err = n.share(t, target, nil); err == nil {
				return
			}
			if timeout > time.Minute {
				t.Fatal(err)
			}
		}
	})
}

func init() {
	roles = append(roles, gate.WithRole("publish", func() {
		n, err := New(Config{})
		if err == nil {
			err = n.PublishShare(context.Background(), PublishShareRequest{VolumeID: "v", Source: "server:/share", FSType: "tmpfs", TargetPath: os.Args[1]})
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}))
}

// A helper that survives a killed driver would mount on top of what the next driver has
// mounted.
func TestShareHelperIsKilledWithTheDriver(t *testing.T) {
	_, _, pods := staged(t)
	fifo := filepath.Join(t.TempDir(), "fifo")
	ok(t, unix.Mkfifo(fifo, 0o600))
	helper(t, "tmpfs", fmt.Sprintf("exec 3>%s; echo hello >&3; exec sleep 600", fifo))
	driver := gate.RoleCommand(context.Background(), "publish", filepath.Join(pods, "p"))
	driver.Stderr = os.Stderr
	ok(t, driver.Start())
	helper, err := os.Open(fifo)
	ok(t, err)
	defer helper.Close()
	hello := make([]byte, len("hello\n"))
	_, err = io.ReadFull(helper, hello)
	ok(t, err)
	ok(t, driver.Process.Kill())
	_ = driver.Wait()
	if _, err := helper.Read(hello); !errors.Is(err, io.EOF) { // once it has ended
		t.Error(err)
	}
}

// INTERNAL is final for kubelet: nothing may be mounted after it.
func TestShareHelperFailsWithChildRunning(t *testing.T) {
	n, _, pods := staged(t)
	pid := filepath.Join(t.TempDir(), "pid")
	helper(t, "tmpfs", fmt.Sprintf(`(sleep 1; %s) & echo $! > %s; exit 32`, mounts, pid))
	wantKind(t, n.share(t, filepath.Join(pods, "p"), nil), csierr.Internal, "status 32")
	text, err := os.ReadFile(pid)
	ok(t, err)
	if state, err := os.ReadFile("/proc/" + strings.TrimSpace(string(text)) + "/stat"); err == nil && !bytes.Contains(state, []byte(") Z ")) {
		t.Errorf("its child still runs: %s", state)
	}
}

// kubernetes-csi/csi-driver-nfs#927: a stale handle kept pods from starting again.
func TestStaleShareIsReplaced(t *testing.T) {
	n, _, pods := staged(t)
	helper(t, "tmpfs", mounts)
	target := filepath.Join(pods, "p")
	ok(t, os.Mkdir(target, 0o755))
	mountFuse(t, target).die()
	for range 2 {
		ok(t, n.share(t, target, nil))
	}
	if got := mountedTypes(t, target); len(got) != 1 || got[0] != "tmpfs" {
		t.Errorf("mounted is %v, want tmpfs", got)
	}
}

func init() { roles = append(roles, gate.WithRole("mount.fuse", mountFuseRole)) }

// mountFuseRole is a mount helper that is also the server of its file system. It ends with
// its input.
func mountFuseRole() {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR, 0)
	if err == nil {
		err = unix.Mount(os.Args[1], os.Args[2], "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd))
	}
	if err == nil && fd != 3 {
		err = unix.Dup3(fd, 3, 0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fuseRole()
}

// A server that has ended, or was killed with a helper that timed out, leaves a mount at
// which the pod would get ENOTCONN.
func TestShareThatFailsAfterMount(t *testing.T) {
	_, _, pods := staged(t)
	role := gate.RoleCommand(t.Context(), "mount.fuse")
	run := fmt.Sprintf(`exec env %s %s "$1" "$2"`, strings.Join(role.Env[len(os.Environ()):], " "), role.Path)
	for _, tt := range []struct {
		name, script string
		timeout      time.Duration
		code         codes.Code
	}{
		{"helper succeeds", "(" + run + ")</dev/null", 0, codes.Internal},
		{"helper is killed", "sleep 600 | (" + run + ")", time.Second, codes.DeadlineExceeded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, err := New(Config{HelperTimeout: tt.timeout})
			ok(t, err)
			mountFuse(t, t.TempDir()).die() // or says what the test lacks
			helper(t, "fuse", tt.script)
			target := filepath.Join(pods, "p")
			err = n.share(t, target, func(r *PublishShareRequest) { r.FSType = "fuse" })
			if status.Code(err) != tt.code {
				t.Errorf("error is %v, want code %v", err, tt.code)
			}
			if got := mountedTypes(t, target); len(got) > 0 {
				t.Errorf("mounted is %v", got)
			}
		})
	}
}

func TestShareCriticalOptions(t *testing.T) {
	on := []mountapi.Mount{{
		MountPoint: "/p", Root: "/", Options: "rw,relatime", FSType: "nfs4", Source: "server:/share",
		SuperOptions: "rw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,hard,proto=tcp,timeo=600,retrans=2,sec=sys,clientaddr=10.0.0.2",
	}}
	for _, tt := range []struct {
		flags []string
		same  bool
	}{
		{nil, true},
		{[]string{"nfsvers=4.2"}, true},
		{[]string{"vers=4"}, true},
		{[]string{"vers=4.1"}, false},
		{[]string{"nfsvers=3"}, false},
		{[]string{"sec=sys"}, true},
		{[]string{"sec=krb5p"}, false},
		{[]string{"sec=krb5p:sys"}, true}, // nfs(5): a list, of which the server takes one
		{[]string{"sec=krb5p:krb5i"}, false},
		{[]string{"vers=default"}, true}, // mount.cifs(8)
		{[]string{"proto=udp"}, false},
		{[]string{"rsize=4096", "hard", "timeo=50"}, true}, // negotiated, or not worth a conflict
	} {
		s, err := checkShare(PublishShareRequest{Source: "server:/share/", FSType: "nfs", TargetPath: "/p", MountFlags: tt.flags})
		ok(t, err)
		if diff := s.compare(on); (len(diff) == 0) != tt.same {
			t.Errorf("%q: %v", tt.flags, diff)
		}
	}
}

// The group of a share is that of one of its mounts.
func TestShareOfAGroup(t *testing.T) {
	on := []mountapi.Mount{{
		MountPoint: "/p", Root: "/", Options: "rw,relatime", FSType: "cifs", Source: "//server/share",
		SuperOptions: "rw,vers=3.1.1,cache=strict,username=joe,uid=0,noforceuid,gid=4711,forcegid,file_mode=0770,dir_mode=0770",
	}}
	for flag, same := range map[string]bool{"gid=4711": true, "gid=4712": false, "gid=staff": true, "uid=7": true} {
		s, err := checkShare(PublishShareRequest{Source: "//server/share", FSType: "cifs", TargetPath: "/p", MountFlags: []string{flag}})
		ok(t, err)
		if diff := s.compare(on); (len(diff) == 0) != same {
			t.Errorf("%s: %v", flag, diff)
		}
	}
}

// A source that may be published once is not published twice, whatever else is mounted.
func TestPublishShareExclusively(t *testing.T) {
	n, _, pods := staged(t)
	helper(t, "tmpfs", mounts)
	exclusive := func(r *PublishShareRequest) { r.Exclusive = true }
	other := func(r *PublishShareRequest) { r.Exclusive, r.Source = true, "server:/share/sub" }
	a, b, c := filepath.Join(pods, "a"), filepath.Join(pods, "b"), filepath.Join(pods, "c")
	for range 2 {
		ok(t, n.share(t, a, exclusive))
		ok(t, n.share(t, b, other))
	}
	wantKind(t, n.share(t, c, exclusive), csierr.Precondition, a)
	if _, err := os.Stat(c); !os.IsNotExist(err) {
		t.Errorf("the target stays: %v", err)
	}
	ok(t, n.share(t, c, nil))
	for _, target := range []string{a, b, c} {
		ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: target}))
	}
}
