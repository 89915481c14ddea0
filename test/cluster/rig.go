//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	apiAddress = "10.96.0.1" // the first of the services' range, which is the service "kubernetes"
	gateway    = "10.97.0.1"
	pauseImage = "registry.k8s.io/pause:3.10.1"
	sharedDir  = "/mnt/shared" // the file system of the pools
	localPool  = "/var/lib/blockdriver"
	poolSize   = 8 << 30
)

// A rig is a cluster on this machine, in namespaces of its own: the control plane in those
// of this process, each node in more of its own.
type rig struct {
	dir      string
	source   string // the root of the repository
	images   string
	named    map[string]bool // images in the archive
	path     string
	cgroup   string
	ca       *authority
	nodes    map[string]*node
	added    int // nodes until now
	guests   guestConfig
	previous previousDriver
	server   string // the node that is the NFS server
	selection
	suites []*suiteTable
	// The overlay is deployed, with its rights, outside these times.
	removed []period

	cancel context.CancelCauseFunc
	mu     sync.Mutex
	ended  bool
}

type period struct{ from, to time.Time }

type node struct {
	nodeConfig
	cmd    *exec.Cmd
	exited chan struct{}
}

// startRig makes the pool's file system, the network and the control plane.
func startRig(ctx context.Context, cancel context.CancelCauseFunc, c insideConfig) (*rig, error) {
	r := &rig{dir: c.Dir, source: c.Source, images: c.Images, named: c.Named, guests: c.Guests, previous: c.Previous, path: os.Getenv("PATH"), cgroup: c.Cgroup, selection: c.selection, nodes: map[string]*node{}, cancel: cancel}
	if err := r.makePool(); err != nil {
		return nil, err
	}
	for _, args := range []string{
		"link set lo up",
		"addr add " + apiAddress + "/32 dev lo",
		"link add br0 type bridge",
		"addr add " + gateway + "/24 dev br0",
		"link set br0 up",
	} {
		if err := r.ip(args); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return nil, err
	}
	return r, r.startControlPlane(ctx)
}

func (r *rig) ip(args string) error {
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", args, err, out)
	}
	return nil
}

// makePool mounts an XFS, which copies files by reference, in a file: what the hosts of a
// shared pool have mounted.
func (r *rig) makePool() error {
	file := filepath.Join(r.dir, poolFile)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(file, poolSize); err != nil {
		return err
	}
	if err := mount("tmpfs", "/mnt", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	if err := os.Mkdir(sharedDir, 0o755); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"mkfs.xfs", "-q", "-m", "reflink=1", file},
		{"mount", "-o", "loop", file, sharedDir},
		{"install", "-d", "-m", "700", "-o", "65532", "-g", "65532", sharedDir + "/blockdriver"}, // README.md of blockdriver
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", args, err, out)
		}
	}
	return nil
}

// start starts a process of the control plane, whose end is the end of all.
func (r *rig) start(name string, args ...string) error {
	logFile, err := os.Create(r.log(name))
	if err != nil {
		return err
	}
	defer logFile.Close()
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		cmd.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.ended {
			r.cancel(fmt.Errorf("%s ended with %v\n%s", name, cmd.ProcessState, tail(r.log(name), 15)))
		}
	}()
	return nil
}

func (r *rig) log(name string) string { return filepath.Join(r.dir, name+".log") }

func (r *rig) startControlPlane(ctx context.Context) error {
	ca, err := newAuthority(filepath.Join(r.dir, "pki"))
	if err != nil {
		return err
	}
	r.ca = ca
	err = errors.Join(
		ca.server("apiserver", apiAddress, "127.0.0.1"),
		ca.client("admin", "admin", "system:masters"),
		ca.client("apiserver-kubelet", "apiserver", "system:masters"),
		ca.client("controller-manager", "system:kube-controller-manager"),
		ca.client("scheduler", "system:kube-scheduler"),
		ca.server("serviceaccounts"), // for its key
	)
	if err != nil {
		return err
	}
	policy := filepath.Join(r.dir, "audit.yaml")
	err = os.WriteFile(policy, []byte(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted, Panic]
rules:
  - {level: Metadata, userGroups: ["system:serviceaccounts"]}
  - {level: None}
`), 0o644)
	if err != nil {
		return err
	}
	if err := r.start("etcd", "--data-dir="+filepath.Join(r.dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380"); err != nil {
		return err
	}
	if err := r.start("kube-apiserver",
		"--etcd-servers=http://127.0.0.1:2379", "--secure-port=443", "--bind-address=0.0.0.0",
		"--advertise-address="+gateway, "--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged",
		"--tls-cert-file="+ca.crt("apiserver"), "--tls-private-key-file="+ca.pem("apiserver"), "--client-ca-file="+ca.crt("ca"),
		"--kubelet-client-certificate="+ca.crt("apiserver-kubelet"), "--kubelet-client-key="+ca.pem("apiserver-kubelet"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+ca.crt("serviceaccounts"), "--service-account-signing-key-file="+ca.pem("serviceaccounts"),
		"--kubelet-preferred-address-types=InternalIP", "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--audit-policy-file="+policy, "--audit-log-path="+r.auditLog(), "--audit-log-maxsize=0"); err != nil {
		return err
	}
	if err := r.poll(ctx, time.Minute, "kube-apiserver", func() error {
		_, err := r.kubectl(ctx, "get", "--raw", "/readyz")
		return err
	}); err != nil {
		return err
	}
	if err := r.start("kube-controller-manager", "--kubeconfig="+ca.kubeconfig("controller-manager"),
		"--root-ca-file="+ca.crt("ca"), "--service-account-private-key-file="+ca.pem("serviceaccounts"),
		"--use-service-account-credentials", "--leader-elect=false",
		"--node-monitor-grace-period=20s"); err != nil {
		return err
	}
	return r.start("kube-scheduler", "--kubeconfig="+ca.kubeconfig("scheduler"), "--leader-elect=false")
}

func (r *rig) auditLog() string { return filepath.Join(r.dir, "audit.log") }

// addNode makes a node that boot can start.
func (r *rig) addNode(name string, guest bool) error {
	r.added++
	n := r.added
	c := nodeConfig{
		Guest: guest,
		Name:  name, Dir: filepath.Join(r.dir, name),
		Pods: fmt.Sprintf("10.98.%d.0/24", n), Address: fmt.Sprintf("10.97.0.%d", 10+n), Gateway: gateway,
		Path: r.path, CA: r.ca.crt("ca"), Kubeconfig: r.ca.kubeconfig(name),
		Serving: [2]string{r.ca.crt(name + "-serving"), r.ca.pem(name + "-serving")},
		Cgroup:  filepath.Join(r.cgroup, name), Images: r.images,
	}
	err := errors.Join(
		os.MkdirAll(c.Dir, 0o755),
		r.ca.client(name, "system:node:"+name, "system:nodes"),
		r.ca.server(name+"-serving", c.Address),
		r.ip(fmt.Sprintf("route add %s via %s", c.Pods, c.Address)),
	)
	if err != nil {
		return err
	}
	if guest && r.server == "" {
		c.Serves, r.server = nfsAddress, name
		if err := r.ip("route add " + nfsAddress + " via " + c.Address); err != nil {
			return err
		}
	}
	r.nodes[name] = &node{nodeConfig: c}
	return nil
}

// removeNode ends a node for ever.
func (r *rig) removeNode(ctx context.Context, name string) error {
	if err := r.powerOff(name); err != nil {
		return err
	}
	delete(r.nodes, name)
	_, err := r.kubectl(ctx, "delete", "node", name)
	return err
}

// boot starts a node that is not running.
func (r *rig) boot(ctx context.Context, name string) error {
	n := r.nodes[name]
	lease := func() (string, error) {
		return r.kubectl(ctx, "-n", "kube-node-lease", "get", "lease", name, "--ignore-not-found", "-o", "jsonpath={.spec.renewTime}")
	}
	before, err := lease()
	if err != nil {
		return err
	}
	argument, err := json.Marshal(n.nodeConfig)
	if err != nil {
		return err
	}
	console, err := os.OpenFile(r.log(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer console.Close()
	start, timeout := r.startNode, 5*time.Minute
	if n.Guest {
		start, timeout = r.startGuest, 10*time.Minute
	}
	if err := start(n, argument, console); err != nil {
		return err
	}
	exited := make(chan struct{})
	n.exited = exited
	go func() { n.cmd.Wait(); close(exited) }()
	return r.poll(ctx, timeout, name, func() error {
		select {
		case <-exited:
			return final{fmt.Errorf("it ended:\n%s", tail(r.log(name), 20))}
		default:
		}
		// Its status is the one from before until kubelet runs.
		if now, err := lease(); err != nil || now == before {
			return errors.Join(err, errors.New("kubelet does not renew its lease"))
		}
		out, err := r.kubectl(ctx, "get", "node", name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && out != "True" {
			err = errors.New("not ready")
		}
		return err
	})
}

// startNode starts the first process of a node in namespaces, with output to console.
func (r *rig) startNode(n *node, argument []byte, console *os.File) error {
	n.cmd = exec.Command("/proc/self/exe", "node", string(argument))
	n.cmd.Stdout, n.cmd.Stderr = console, console
	n.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	ready, err := n.cmd.StdinPipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	if err := n.cmd.Start(); err != nil {
		return err
	}
	for _, args := range []string{
		fmt.Sprintf("link add %s type veth peer name eth0 netns %d", n.Name, n.cmd.Process.Pid),
		"link set " + n.Name + " master br0 up",
	} {
		if err := r.ip(args); err != nil {
			return err
		}
	}
	return nil
}

// powerOff kills everything on a node at once. The loop devices of its volumes belong to no
// namespace, and are detached: they do not outlive a machine either.
func (r *rig) powerOff(name string) error {
	n := r.nodes[name]
	loops, err := r.loopsOf(n)
	if err != nil {
		return err
	}
	if err := n.cmd.Process.Kill(); err != nil {
		return err
	}
	<-n.exited
	if err := r.ip("link delete " + name); err != nil && !strings.Contains(err.Error(), "Cannot find device") {
		return err
	}
	for _, d := range loops {
		if err := detach(d.path); err != nil {
			return err
		}
	}
	return nil
}

var mountedLoop = regexp.MustCompile(`/(loop[0-9]+)\b`)

// loopsOf returns the loop devices of a node in the order in which they can be detached: those that
// kubelet attaches to volumes in block mode, to have them open, then those of the volumes.
func (r *rig) loopsOf(n *node) (loops []loopDevice, err error) {
	if n.Guest {
		return nil, nil // they are its kernel's
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", n.cmd.Process.Pid))
	if err != nil {
		return nil, err
	}
	mounted := map[string]bool{}
	for _, m := range mountedLoop.FindAllSubmatch(mounts, -1) {
		mounted["/dev/"+string(m[1])] = true
	}
	var pool unix.Stat_t
	if err := unix.Stat(sharedDir, &pool); err != nil {
		return nil, err
	}
	all, err := loopDevices()
	if err != nil {
		return nil, err
	}
	volumes := map[uint64]bool{}
	for _, d := range all {
		// The table has the machine's own mounts as well.
		if mounted[d.path] && d.info.Device == pool.Dev {
			volumes[d.rdev] = true
			loops = append(loops, d)
		}
	}
	for _, d := range all {
		if volumes[d.info.Rdevice] {
			loops = slices.Insert(loops, 0, d)
		}
	}
	return loops, nil
}

// processes returns the process IDs of programs with a name and an argument on a node.
func (r *rig) processes(name, program, argument string) (pids []int) {
	top := r.nodes[name].cmd.Process.Pid
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || len(cmdline) == 0 {
			continue
		}
		args := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
		if filepath.Base(args[0]) != program || argument != "" && !slices.Contains(args, argument) {
			continue
		}
		if descends(pid, top) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// descends: the process is below the first one of a node, to which orphans are given.
func descends(pid, top int) bool {
	for pid > 1 {
		if pid == top {
			return true
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return false
		}
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if pid, err = strconv.Atoi(f[1]); err != nil {
			return false
		}
	}
	return false
}

// kill sends SIGKILL to them, at least one.
func (r *rig) kill(name, program, argument string) error {
	pids := r.processes(name, program, argument)
	if len(pids) == 0 {
		return fmt.Errorf("no process %s %s on %s", program, argument, name)
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			return err
		}
	}
	return nil
}

// A final error ends a poll.
type final struct{ error }

func (r *rig) poll(ctx context.Context, timeout time.Duration, what string, check func() error) error {
	for end := time.Now().Add(timeout); ; {
		err := check()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if f := (final{}); errors.As(err, &f) || time.Now().After(end) {
			return fmt.Errorf("%s: %w", what, err)
		}
		select {
		case <-time.After(250 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func tail(name string, n int) string {
	f, err := os.Open(name)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	const most = 64 << 10
	if info, err := f.Stat(); err == nil && info.Size() > most {
		f.Seek(-most, io.SeekEnd)
	}
	text, _ := io.ReadAll(f)
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
