package csitest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// A naiveDriver trusts every volume ID and every path that it gets.
type naiveDriver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	pool string
	kind naiveKind
}

// A naiveKind is one way of using an ID without a check.
type naiveKind struct {
	name           string
	remove, create func(pool, id string) error
	// Of the target path; by default a directory is created, and removed with its content.
	publish, unpublish func(target string) error
	unseen             bool   // no canary shows it
	plugin             string // the driver's name
	checkMounts        bool
}

func naiveGo(name string, path func(pool, id string) string) naiveKind {
	return naiveKind{
		name:   name,
		remove: func(pool, id string) error { return os.RemoveAll(path(pool, id)) },
		create: func(pool, id string) error {
			p := path(pool, id)
			return errors.Join(os.MkdirAll(p, 0o750), os.WriteFile(p+"/meta", nil, 0o600), os.WriteFile(p+".json", nil, 0o600))
		},
	}
}

func naiveShell(name, remove, create string) naiveKind {
	run := func(format string) func(pool, id string) error {
		return func(pool, id string) error {
			cmd := exec.Command("/bin/sh", "-c", strings.ReplaceAll(format, "PATH", pool+"/"+id))
			cmd.Dir = "/home"
			return cmd.Run()
		}
	}
	return naiveKind{name: name, remove: run(remove), create: run(create)}
}

func naiveExec(name string, dir func(pool string) string, args func(pool, id string) []string) naiveKind {
	run := func(program ...string) func(pool, id string) error {
		return func(pool, id string) error {
			cmd := exec.Command(program[0], append(program[1:], args(pool, id)...)...)
			cmd.Dir = dir(pool)
			return cmd.Run()
		}
	}
	return naiveKind{name: name, remove: run("/bin/rm", "-rf"), create: run("/bin/mkdir", "-p")}
}

var naiveKinds = []naiveKind{
	naiveGo("join", func(pool, id string) string { return filepath.Join(pool, id) }),
	naiveShell("shell", "rm -rf PATH", "mkdir -p PATH && echo x > PATH/meta"),
	naiveGo("concatenation", func(pool, id string) string { return pool + "/" + id }),
	naiveGo("prefix and suffix", func(pool, id string) string { return filepath.Join(pool, "vol-"+id+".img") }),
	naiveGo("absolute", func(pool, id string) string {
		if strings.HasPrefix(id, "/") { // as os.path.join of Python
			return id
		}
		return pool + "/" + strings.ReplaceAll(id, "../", "")
	}),
	naiveShell("single quotes", "rm -rf 'PATH'", "mkdir -p 'PATH'"),
	naiveShell("double quotes", `rm -rf "PATH"`, `mkdir -p "PATH"`),
	naiveShell("cd", "cd PATH && rm -rf *", "cd PATH/sub && touch meta"),
	naiveShell("cd in a script", "set -e\ncd PATH\nrm -rf *", "set -e\ncd PATH\ntouch meta"),
	naiveExec("relative", func(pool string) string { return pool }, func(_, id string) []string { return []string{id} }),
	naiveShell("suffix", "rm -rf PATH/*", "mkdir -p PATH/data"),
	naiveExec("variable", func(string) string { return "/home" }, func(pool, id string) []string {
		// What "$pool/$id/data" without quotes comes to in a script.
		return strings.Fields(pool + "/" + id + "/data")
	}),
	{ // whose IDs are paths
		name: "ID as a path",
		remove: func(pool, id string) error {
			return exec.Command("/bin/sh", "-c", "cd "+pool+" && rm -rf "+id+"/*").Run()
		},
		create: func(pool, id string) error { return exec.Command("/bin/sh", "-c", "cd "+pool+" && mkdir -p "+id).Run() },
	},
	firstComponent(),
	naiveExec("words", func(string) string { return "/home" }, func(pool, id string) []string { return strings.Fields(pool + "/" + id) }),
}

func firstComponent() naiveKind {
	k := naiveGo("first component", func(pool, id string) string {
		first, _, _ := strings.Cut(id, "/")
		return filepath.Join(pool, first)
	})
	k.unseen = true
	return k
}

// naiveNodeKinds use IDs as the first of naiveKinds, and the node's paths without a check.
var naiveNodeKinds = []naiveKind{
	naivePaths("empty target path", naiveKind{unpublish: func(target string) error {
		return exec.Command("/bin/sh", "-c", "rm -rf "+target+"/*; rmdir "+target).Run()
	}}),
	naivePaths("empty target path at publish", naiveKind{publish: func(target string) error {
		return exec.Command("/bin/sh", "-c", "rm -rf "+target+"/*; mkdir "+target).Run()
	}}),
	naivePaths("name of the driver", naiveKind{plugin: "../../../../../../../../home/user"}),
	naivePaths("symbolic link as target", naiveKind{checkMounts: true,
		publish: func(target string) error {
			if err := os.Symlink("/home/user", target); !errors.Is(err, fs.ErrExist) {
				return err
			}
			return nil
		},
	}),
	naivePaths("another directory mounted", naiveKind{checkMounts: true,
		publish: func(target string) error {
			return errors.Join(os.MkdirAll(target, 0o750), unix.Mount("/var", target, "", unix.MS_BIND, ""))
		},
		unpublish: func(string) error { return errors.New("busy") },
	}),
}

func naivePaths(name string, k naiveKind) naiveKind {
	k.name, k.remove, k.create = name, naiveKinds[0].remove, naiveKinds[0].create
	return k
}

func (d *naiveDriver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: cmp.Or(d.kind.plugin, "naive.csikit.dev"), VendorVersion: "1"}, nil
}

func (d *naiveDriver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_Service_{
		Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE},
	}}}}, nil
}

func (d *naiveDriver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (d *naiveDriver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	resp := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	} {
		resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{
			Rpc: &csi.ControllerServiceCapability_RPC{Type: t},
		}})
	}
	return resp, nil
}

func (d *naiveDriver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{Type: &csi.NodeServiceCapability_Rpc{
		Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
	}}}}, nil
}

func (d *naiveDriver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node"}, nil
}

// used turns what became of an ID into an answer.
func used[Resp any](err error, resp *Resp) (*Resp, error) {
	if err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	return resp, nil
}

func (d *naiveDriver) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	return used(d.kind.create(d.pool, r.GetName()), &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: r.GetName(), CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}})
}

func (d *naiveDriver) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	_ = d.kind.remove(d.pool, r.GetVolumeId())
	return &csi.DeleteVolumeResponse{}, nil
}

func (d *naiveDriver) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	return used(d.kind.create(d.pool, r.GetVolumeId()), &csi.ControllerPublishVolumeResponse{})
}

func (d *naiveDriver) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	return used(d.kind.remove(d.pool, r.GetVolumeId()), &csi.ControllerUnpublishVolumeResponse{})
}

func (d *naiveDriver) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	return used(d.kind.create(d.pool, r.GetVolumeId()), &csi.ValidateVolumeCapabilitiesResponse{})
}

func (d *naiveDriver) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	return used(d.kind.create(d.pool, r.GetVolumeId()), &csi.ControllerExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes()})
}

func (d *naiveDriver) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return used(errors.Join(d.kind.create(d.pool, r.GetVolumeId()), os.MkdirAll(r.GetStagingTargetPath(), 0o750)), &csi.NodeStageVolumeResponse{})
}

func (d *naiveDriver) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return used(errors.Join(d.kind.remove(d.pool, r.GetVolumeId()), os.RemoveAll(r.GetStagingTargetPath())), &csi.NodeUnstageVolumeResponse{})
}

func (d *naiveDriver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return used(errors.Join(d.kind.create(d.pool, r.GetVolumeId()), d.publish(r.GetTargetPath())), &csi.NodePublishVolumeResponse{})
}

func (d *naiveDriver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return used(errors.Join(d.kind.remove(d.pool, r.GetVolumeId()), d.unpublish(r.GetTargetPath())), &csi.NodeUnpublishVolumeResponse{})
}

func (d *naiveDriver) publish(target string) error {
	if d.kind.publish != nil {
		return d.kind.publish(target)
	}
	return os.MkdirAll(target, 0o750)
}

func (d *naiveDriver) unpublish(target string) error {
	if d.kind.unpublish != nil {
		return d.kind.unpublish(target)
	}
	return os.RemoveAll(target)
}

// A naiveResult is what one run of the rules against a naive driver came to.
type naiveResult struct {
	Name    string
	Outside []string // what changed outside of the pool and csicheck's directory
	Failed  map[string][]string
	Unseen  bool
	Error   string
	Took    time.Duration
}

// No rule harms the machine, however bad the driver is: run against drivers that use IDs
// and paths without a check, from pools at every depth, nothing changes but the pool and
// csicheck's own directory. And the rule finds these drivers.
//
// All of it happens in a second process, in its own mount namespace whose root is a
// tmpfs with the programs of this machine mounted read-only. A rule that is wrong damages
// that.
func TestHarmless(t *testing.T) {
	gate.UserNS(t)
	t.Parallel()
	out := naiveProcess(t, "rules")
	if len(out) == 0 {
		t.Fatal("nothing was run")
	}
	for _, x := range out {
		t.Run(x.Name, func(t *testing.T) {
			if x.Error != "" {
				t.Fatal(x.Error)
			}
			for _, changed := range x.Outside {
				t.Errorf("outside of the pool and csicheck's directory: %s", changed)
			}
			ids := x.Failed["hostile.ids"]
			if len(ids) == 0 && !x.Unseen {
				t.Error("hostile.ids did not fail")
			}
			for _, text := range ids {
				if !strings.Contains(text, "volume_id ") || !strings.Contains(text, " was used as ") || !strings.Contains(text, "/csi/csicheck-") {
					t.Errorf("a failure that does not say what was done to a canary: %s", text)
				}
			}
			t.Logf("%v, %d rules failed; %s", x.Took.Round(time.Millisecond), len(x.Failed), strings.Join(ids, "\n"))
		})
	}
}

// TestHarmless can fail: what a rule must not send is seen to do damage.
func TestHarmlessSeesHarm(t *testing.T) {
	gate.UserNS(t)
	t.Parallel()
	for _, x := range naiveProcess(t, "control") {
		if x.Error != "" || len(x.Outside) == 0 {
			t.Errorf("%s: changed %q, error %q", x.Name, x.Outside, x.Error)
		}
	}
}

// naiveProcess runs naiveMain in its own mount namespace.
func naiveProcess(t *testing.T, what string) (all []naiveResult) {
	t.Helper()
	runtime.LockOSThread() // a thread that starts a child with Pdeathsig must live as long; rules end threads
	defer runtime.UnlockOSThread()
	cmd := gate.RoleCommand(t.Context(), "naive", t.TempDir(), what)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	var text, problems strings.Builder
	cmd.Stdout, cmd.Stderr = &text, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, problems.String())
	}
	if err := json.Unmarshal([]byte(text.String()), &all); err != nil {
		t.Fatalf("%v\n%s%s", err, text.String(), problems.String())
	}
	return all
}

// naiveMain is the role: it enters its own root and prints results.
func naiveMain() {
	if err := privateRoot(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "private root:", err)
		os.Exit(1)
	}
	var all []naiveResult
	switch os.Args[2] {
	case "rules":
		for depth := 1; depth <= 10; depth++ {
			for i, kind := range naiveKinds {
				if i == 0 || i == 1 && !underRace || i == depth || i == depth+10 { // the others differ from the first two, but not by depth
					all = append(all, naiveRun(kind, depth, func(endpoint string) (*Report, error) {
						return naiveCheck(endpoint, kind, "hostile.ids", "hostile.paths")
					}))
				}
			}
		}
		for i, kind := range naiveKinds {
			if underRace && i > 0 {
				break
			}
			x := naiveRun(kind, 4, func(endpoint string) (*Report, error) { return naiveCheck(endpoint, kind) })
			x.Name += ", all rules"
			all = append(all, x)
		}
		for _, kind := range naiveNodeKinds {
			x := naiveRun(kind, 4, func(endpoint string) (*Report, error) { return naiveCheck(endpoint, kind) })
			x.Name += ", all rules"
			all = append(all, x)
		}
	case "control":
		for i, id := range []string{"../../../../etc/passwd", "..", "x;rm -rf /home/*", "/../neighbour"} {
			x := naiveRun(naiveKinds[i/2], 4, func(endpoint string) (*Report, error) { return &Report{}, naiveDelete(endpoint, id) })
			x.Name = id
			all = append(all, x)
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(all); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// privateRoot makes a tmpfs the root of this mount namespace, with nothing of the machine
// but its programs, read-only, and /dev/null.
func privateRoot(root string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, dir := range []string{"usr", "proc", "bin", "sbin", "lib", "lib32", "lib64"} {
		from, to := "/"+dir, filepath.Join(root, dir)
		info, err := os.Lstat(from)
		if err != nil {
			continue
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(from)
			if err := errors.Join(err, os.Symlink(target, to)); err != nil {
				return err
			}
			continue
		}
		if err := errors.Join(os.Mkdir(to, 0o755), unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, "")); err != nil {
			return err
		}
		readonly := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(unix.AT_FDCWD, to, unix.AT_RECURSIVE, readonly); err != nil {
			return fmt.Errorf("%s read-only: %w", dir, err)
		}
	}
	null := filepath.Join(root, "dev/null")
	if err := errors.Join(os.Mkdir(filepath.Join(root, "dev"), 0o755), os.WriteFile(null, nil, 0o666),
		unix.Mount("/dev/null", null, "", unix.MS_BIND, "")); err != nil {
		return err
	}
	old := filepath.Join(root, "old")
	if err := errors.Join(os.Mkdir(old, 0o700), unix.PivotRoot(root, old), os.Chdir("/"), unix.Unmount("/old", unix.MNT_DETACH), os.Remove("/old")); err != nil {
		return err
	}
	for _, file := range []string{"/etc/passwd", "/etc/shadow", "/home/user/data", "/home/1", "/var/lib/kubelet/config", "/var/data", "/var/written", "/home/user/mine", "/tmp/file", "/x", "/1"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("precious"), 0o644)); err != nil {
			return err
		}
	}
	return errors.Join(os.MkdirAll("/var/empty", 0o755), os.Mkdir("/csi", 0o755), os.Mkdir("/run", 0o755), os.Setenv("TMPDIR", "/csi"))
}

// naiveRun serves the driver from a pool at that depth, lets something be done to it, and
// compares the root before and after.
func naiveRun(kind naiveKind, depth int, do func(endpoint string) (*Report, error)) (x naiveResult) {
	begin := time.Now()
	x = naiveResult{Name: fmt.Sprintf("%s at depth %d", kind.name, depth), Failed: map[string][]string{}, Unseen: kind.unseen}
	pool := "/"
	for i := range depth - 1 {
		pool = filepath.Join(pool, fmt.Sprintf("d%d", i+1))
		if err := errors.Join(os.MkdirAll(filepath.Join(pool, "neighbour"), 0o755), os.WriteFile(filepath.Join(pool, "keep"), nil, 0o644)); err != nil {
			x.Error = err.Error()
			return x
		}
	}
	pool = filepath.Join(pool, "pool")
	if err := os.MkdirAll(pool, 0o755); err != nil {
		x.Error = err.Error()
		return x
	}
	lis, err := net.Listen("unix", "/run/csi.sock")
	if err != nil {
		x.Error = err.Error()
		return x
	}
	d := &naiveDriver{pool: pool, kind: kind}
	s := grpc.NewServer()
	csi.RegisterIdentityServer(s, d)
	csi.RegisterControllerServer(s, d)
	csi.RegisterNodeServer(s, d)
	go s.Serve(lis)
	before := outside(pool)
	report, err := do("unix:///run/csi.sock")
	s.Stop()
	for _, m := range mounts("/csi") {
		_ = unix.Unmount(m.point, unix.MNT_DETACH) // before the next run
	}
	after := outside(pool)
	if err != nil {
		x.Error = err.Error()
		return x
	}
	for _, result := range report.ResultsWith(Failed) {
		for _, f := range result.Failures {
			x.Failed[result.Rule.ID] = append(x.Failed[result.Rule.ID], f.Got)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(before)) {
		if after[path] != before[path] {
			x.Outside = append(x.Outside, "removed or changed: "+path)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(after)) {
		if before[path] == "" && !strings.Contains(path, "/csicheck-") { // an odd name, taken for two words, or a file in what was mounted as a volume
			x.Outside = append(x.Outside, "created: "+path)
		}
	}
	x.Took = time.Since(begin)
	return x
}

// outside describes all files of the root but those of the pool, of csicheck, and of the
// read-only mounts.
func outside(pool string) map[string]string {
	all := map[string]string{}
	_ = filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			all[path] = err.Error()
			return nil
		case slices.Contains([]string{pool, pool + ".json" /* of the empty ID, which rules about required fields send */, "/csi", "/proc", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/run/csi.sock"}, path):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		all[path] = d.Type().String()
		if d.Type().IsRegular() {
			text, err := os.ReadFile(path)
			all[path] += fmt.Sprint(string(text), err)
		}
		return nil
	})
	return all
}

func naiveCheck(endpoint string, kind naiveKind, rules ...string) (*Report, error) {
	return Check(context.Background(), Target{Endpoint: endpoint, SecondNode: "other"}, Config{
		Dir: "/csi", Rules: rules, CheckMounts: kind.checkMounts, Size: 1 << 20, CleanupTimeout: time.Second, listTimeout: 10 * time.Millisecond,
	})
}

func naiveDelete(endpoint, id string) error {
	cc, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return err
	}
	defer cc.Close()
	_, err = csi.NewControllerClient(cc).DeleteVolume(context.Background(), &csi.DeleteVolumeRequest{VolumeId: id})
	return err
}

func init() { roles = append(roles, gate.WithRole("naive", naiveMain)) }
