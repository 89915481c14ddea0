//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A nodeConfig is what the first process of a node gets as its argument.
type nodeConfig struct {
	Name, Dir  string
	Pods       string // subnet of the pods
	Address    string
	Gateway    string // the control plane's end of the bridge
	Path       string
	CA         string
	Kubeconfig string
	Serving    [2]string // certificate and key of kubelet
	Cgroup     string
	Images     string
	Guest      bool   // it is a virtual machine
	Serves     string // with this address it is an NFS server
}

// runNode is the first process of a node: in namespaces of its own, it is what boots and
// what keeps containerd and kubelet running. When it is killed, the kernel kills everything
// on the node and its mounts end, as with a machine that loses power. What is in its
// directory stays.
func runNode(argument string) error {
	runtime.LockOSThread() // a cgroup namespace is a thread's
	var c nodeConfig
	if err := json.Unmarshal([]byte(argument), &c); err != nil {
		return err
	}
	if err := os.Setenv("PATH", c.Path); err != nil {
		return err
	}
	if c.Guest {
		if err := c.enterGuest(); err != nil {
			return err
		}
	}
	// The network is there when standard input ends.
	if _, err := os.Stdin.Read(make([]byte, 1)); err == nil {
		return errors.New("unexpected input")
	}
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	if err := enterCgroup(hierarchies, c.Cgroup); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := mountNode(c, hierarchies); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(c.Name)); err != nil {
		return err
	}
	commands := [][]string{
		{"link", "set", "lo", "up"},
		{"addr", "add", c.Address + "/24", "dev", "eth0"},
		{"link", "set", "eth0", "up"},
		{"route", "add", "default", "via", c.Gateway},
	}
	if c.Serves != "" {
		commands = append(commands, []string{"addr", "add", c.Serves + "/32", "dev", "eth0"})
	}
	for _, args := range commands {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	if c.Serves != "" {
		if err := c.serveNFS(); err != nil {
			return err
		}
	}
	if err := c.writeFiles(); err != nil {
		return err
	}
	return c.supervise()
}

func mount(source, target, fstype string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		return &fs.PathError{Op: "mount " + fstype, Path: target, Err: err}
	}
	return nil
}

// remount mounts a file system that shows the namespaces of who mounts it, in place of
// the one that is there: cgroups of the host below it would be found first.
func remount(fstype, target string) error {
	if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
		return &fs.PathError{Op: "unmount", Path: target, Err: err}
	}
	return mount(fstype, target, fstype, 0, "")
}

// mountNode makes the file systems of a machine that booted: empty /run, and of the
// machine's own what is kept in the node's directory.
func mountNode(c nodeConfig, hierarchies []hierarchy) error {
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for _, fstype := range []string{"proc", "sysfs"} {
		if err := remount(fstype, "/"+strings.TrimSuffix(fstype, "fs")); err != nil {
			return err
		}
	}
	if err := mountCgroups(hierarchies); err != nil {
		return err
	}
	// kubelet sets these, and they would stay: it finds files instead.
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		file := filepath.Join(c.Dir, "sysctl", name)
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		if err == nil {
			err = os.WriteFile(file, []byte(value), 0o644)
		}
		if err == nil {
			err = mount(file, "/proc/sys/"+name, "", unix.MS_BIND, "")
		}
		if err != nil {
			return err
		}
	}
	if err := mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, dir := range []string{"/var/lib", "/var/log"} {
		own := filepath.Join(c.Dir, dir)
		if err := os.MkdirAll(own, 0o755); err != nil {
			return err
		}
		if err := mount(own, dir, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	// The disk of the pool that is a node's own.
	disk := filepath.Join(sharedDir, "disks", c.Name)
	for _, dir := range []string{disk, localPool} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := mount(disk, localPool, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	// Mounts of a node plugin reach pods by propagation.
	return mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

func (c nodeConfig) writeFiles() error {
	cni := filepath.Join(c.Dir, "cni")
	bin := filepath.Join(c.Dir, "cni-bin")
	for _, dir := range []string{cni, bin} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for _, plugin := range []string{"bridge", "loopback", "host-local"} {
		target, err := exec.LookPath(plugin)
		if err != nil {
			return err
		}
		if err := os.Symlink(target, filepath.Join(bin, plugin)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	for name, text := range map[string]string{
		"cni/10-bridge.conflist": fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "/run/cni"}}]}`, c.Pods),
		"resolv.conf": "",
		"containerd.toml": fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %q
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = [%q]
  conf_dir = %q
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = %q
`, pauseImage, bin, cni, runc),
		"kubelet.yaml": fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %q}}
authorization: {mode: Webhook}
tlsCertFile: %q
tlsPrivateKeyFile: %q
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
failCgroupV1: false
enforceNodeAllocatable: []
makeIPTablesUtilChains: false
failSwapOn: false
resolvConf: %q
evictionHard: {memory.available: 0%%, nodefs.available: 0%%, nodefs.inodesFree: 0%%, imagefs.available: 0%%}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 5s
volumeStatsAggPeriod: 10s
registryPullQPS: 0
`, c.CA, c.Serving[0], c.Serving[1], filepath.Join(c.Dir, "resolv.conf")),
	} {
		if err := os.WriteFile(filepath.Join(c.Dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// supervise starts containerd and kubelet, starts again what ends, and reaps what the
// shims of containerd leave to it.
func (c nodeConfig) supervise() error {
	programs := map[string][]string{
		"containerd": {"--config", filepath.Join(c.Dir, "containerd.toml")},
		"kubelet": {
			"--config", filepath.Join(c.Dir, "kubelet.yaml"), "--kubeconfig", c.Kubeconfig,
			"--hostname-override", c.Name, "--node-ip", c.Address, "-v", "2",
		},
	}
	running := map[int]string{}
	start := func(name string) error {
		path, err := exec.LookPath(name)
		if err != nil {
			return err
		}
		logFile, err := os.OpenFile(filepath.Join(c.Dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		defer logFile.Close()
		null, err := os.Open(os.DevNull)
		if err != nil {
			return err
		}
		defer null.Close()
		pid, err := syscall.ForkExec(path, append([]string{path}, programs[name]...), &syscall.ProcAttr{
			Dir: "/", Env: os.Environ(), Files: []uintptr{null.Fd(), logFile.Fd(), logFile.Fd()},
			Sys: &syscall.SysProcAttr{Setsid: true},
		})
		running[pid] = name
		return err
	}
	if err := start("containerd"); err != nil {
		return err
	}
	if err := importImages(c.Images); err != nil {
		return err
	}
	if err := start("kubelet"); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return os.NewSyscallError("wait4", err)
		}
		name := running[pid]
		if name == "" {
			continue
		}
		delete(running, pid)
		fmt.Printf("%s ended with %v\n", name, status)
		time.Sleep(time.Second) // as the service managers do it
		if err := start(name); err != nil {
			return err
		}
	}
}

// importImages waits for containerd, and imports the images unless they are there from
// before. Each is unpacked when its first container is created.
func importImages(archive string) error {
	var out []byte
	var err error
	for range 600 {
		if out, err = exec.Command("ctr", "-n", "k8s.io", "images", "list", "-q").CombinedOutput(); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("containerd: %w: %s", err, out)
	}
	if strings.Contains(string(out), pauseImage) {
		return nil
	}
	if out, err = exec.Command("ctr", "-n", "k8s.io", "images", "import", "--local", "--no-unpack", archive).CombinedOutput(); err != nil {
		return fmt.Errorf("import of images: %w: %s", err, out)
	}
	return nil
}
