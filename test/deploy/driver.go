package deploy

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// A driver is an example and what is known about it.
type driver struct {
	name string // of its directory in examples, and the beginning of its images' names
	// optional are components that no overlay has, with the overlay to try them on.
	optional map[string]string
	// network: what it mounts is on a server.
	network bool
	// single: two concurrent controllers are not allowed.
	single bool
	// capabilities are what its controller needs; root is needed with them.
	capabilities []corev1.Capability

	binary  string
	flags   map[string]bool
	csiName string
	caps    map[string]bool // by the spec's names, of all its services
}

// build compiles the program, and lists its flags.
func (d *driver) build(ctx context.Context, dir string) error {
	d.binary = filepath.Join(dir, d.name)
	build := exec.CommandContext(ctx, "go", "build", "-o", d.binary, ".")
	build.Dir = "../../examples/" + d.name
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	help, err := exec.CommandContext(ctx, d.binary, "-h").Output()
	if err != nil {
		return fmt.Errorf("%s -h: %w", d.name, err)
	}
	d.flags = map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^  -([a-z-]+)`).FindAllSubmatch(help, -1) {
		d.flags[string(m[1])] = true
	}
	if len(d.flags) == 0 {
		return fmt.Errorf("%s -h lists no flags", d.name)
	}
	return nil
}

// A host stands for the machines of a cluster: its directories are in dir, and the
// containers that run on it see them where their mounts say.
type host struct {
	dir       string // short: sockets are made in it
	paths     []string
	processes []*process
}

type process struct {
	workload *workload
	cmd      *exec.Cmd
	log      bytes.Buffer
	done     chan struct{}
	conn     *grpc.ClientConn
}

// start runs the driver's container of each workload, as often as it has replicas, with
// the arguments it has there and, if it can, as the user it is there, and returns when
// all of them answer.
func (h *host) start(ctx context.Context, d *driver, c *cluster) error {
	for _, w := range c.workloads {
		for _, m := range w.driver.VolumeMounts {
			if v := w.volume(m.Name); v.HostPath != nil {
				if err := makeDir(h.path(v.HostPath.Path), w.credential()); err != nil {
					return err
				}
			}
		}
	}
	for _, w := range c.workloads {
		for _, n := range w.init {
			if err := h.finish(ctx, d, w, n); err != nil {
				return fmt.Errorf("%s: %w", w.of(n), err)
			}
		}
	}
	for _, w := range c.workloads {
		for i := range min(max(w.replicas, 1), 2) { // 0 for a DaemonSet
			if err := h.run(ctx, d, w, int(i)); err != nil {
				return fmt.Errorf("%s: %w", w.of(w.driver), err)
			}
		}
	}
	return nil
}

// finish runs an init container of the driver's.
func (h *host) finish(ctx context.Context, d *driver, w *workload, n *container) error {
	args, _, err := h.arguments(w, n, 0)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, d.binary, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: w.credential()}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %q: %w: %s", d.name, args, err, out)
	}
	return nil
}

// arguments are a container's with its paths, and those of the host, as they are here.
func (h *host) arguments(w *workload, n *container, replica int) (args []string, here func(string) string, err error) {
	type pair struct{ from, to string }
	var pairs []pair
	for _, m := range n.VolumeMounts {
		v := w.volume(m.Name)
		if v.HostPath == nil {
			dir := h.path(fmt.Sprint(w.name, replica, m.Name))
			if err := makeDir(dir, w.credential()); err != nil {
				return nil, nil, err
			}
			pairs = append(pairs, pair{m.MountPath, dir})
			continue
		}
		pairs = append(pairs, pair{m.MountPath, h.path(v.HostPath.Path)}, pair{v.HostPath.Path, h.path(v.HostPath.Path)})
	}
	slices.SortFunc(pairs, func(a, b pair) int { return len(b.from) - len(a.from) })
	var old []string
	for _, p := range pairs {
		old = append(old, p.from+"/", p.to+"/", p.from+",", p.to+",")
	}
	replacer := strings.NewReplacer(old...)
	here = func(text string) string { return strings.TrimSuffix(replacer.Replace(text+"/"), "/") }
	for _, a := range n.Args {
		a = strings.ReplaceAll(here(a), "$(NODE_NAME)", "node-1")
		if strings.HasPrefix(a, "-http=") {
			a = "-http=127.0.0.1:0"
		}
		if strings.HasPrefix(a, "-shared-dirs=") {
			continue // no mount is shared here; rule bidirectional checks the directories
		}
		args = append(args, a)
	}
	return args, here, nil
}

func (h *host) run(ctx context.Context, d *driver, w *workload, replica int) error {
	args, here, err := h.arguments(w, w.driver, replica)
	if err != nil {
		return err
	}
	endpoint := here(w.endpoint())

	p := &process{workload: w, cmd: exec.CommandContext(ctx, d.binary, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	// As in a cluster whose API server cannot be reached: the driver has to serve.
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT=1"}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: w.credential()}
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = 30 * time.Second
	if err := p.cmd.Start(); err != nil {
		return err
	}
	h.processes = append(h.processes, p)
	go func() { _ = p.cmd.Wait(); close(p.done) }()
	if p.conn, err = grpc.NewClient("unix://"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return err
	}
	answer, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	go func() { // one that has ended never answers
		select {
		case <-p.done:
			cancel()
		case <-answer.Done():
		}
	}()
	if err := d.ask(answer, p.conn); err != nil {
		cancel()
		p.stop()
		return fmt.Errorf("%s %q: %w\n%s", d.name, args, err, p.log.String())
	}
	return nil
}

// credential is the user that the driver's container says it is, nil for our own.
func (w *workload) credential() *syscall.Credential {
	u := w.user(w.driver)
	if u == nil || *u == 0 || os.Geteuid() != 0 {
		return nil
	}
	return &syscall.Credential{Uid: uint32(*u), Gid: uint32(*u)}
}

// makeDir creates a directory, owned by the user if there is one.
func makeDir(dir string, c *syscall.Credential) error {
	if err := os.MkdirAll(dir, 0o700); err != nil || c == nil {
		return err
	}
	return os.Chown(dir, int(c.Uid), int(c.Gid))
}

// path is where a directory of the host, or of one pod, is here.
func (h *host) path(name string) string {
	i := slices.Index(h.paths, name)
	if i < 0 {
		i = len(h.paths)
		h.paths = append(h.paths, name)
	}
	return filepath.Join(h.dir, fmt.Sprint(i))
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	<-p.done
}

// process is the first one of a workload.
func (h *host) process(w *workload) *process {
	return h.processes[slices.IndexFunc(h.processes, func(p *process) bool { return p.workload == w })]
}

// stop ends all processes.
func (h *host) stop() {
	for _, p := range h.processes {
		if p.conn != nil {
			p.conn.Close()
		}
		p.stop()
	}
}

// ask learns a driver's name and capabilities.
func (d *driver) ask(ctx context.Context, conn *grpc.ClientConn) error {
	wait := grpc.WaitForReady(true)
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, wait)
	if err != nil {
		return err
	}
	d.csiName = info.GetName()
	if d.caps == nil {
		d.caps = map[string]bool{}
	}
	plugin, err := csi.NewIdentityClient(conn).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return err
	}
	for _, c := range plugin.GetCapabilities() {
		if s := c.GetService(); s != nil {
			d.caps[s.GetType().String()] = true
		}
	}
	// A process that is only one half has not the other half's services.
	if r, err := csi.NewControllerClient(conn).ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{}); err == nil {
		for _, c := range r.GetCapabilities() {
			d.caps[c.GetRpc().GetType().String()] = true
		}
	}
	if r, err := csi.NewNodeClient(conn).NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{}); err == nil {
		for _, c := range r.GetCapabilities() {
			d.caps[c.GetRpc().GetType().String()] = true
		}
	}
	if r, err := csi.NewGroupControllerClient(conn).GroupControllerGetCapabilities(ctx, &csi.GroupControllerGetCapabilitiesRequest{}); err == nil {
		for _, c := range r.GetCapabilities() {
			d.caps[c.GetRpc().GetType().String()] = true
		}
	}
	return nil
}

// provision makes and deletes a volume of each StorageClass, with each
// VolumeAttributesClass if the driver has such, as csi-provisioner would. A driver
// whose volumes are on a server takes the class as far as the server, which is not there:
// what comes behind needs a real one, and is in the driver's own tests (make test-vm).
func (h *host) provision(ctx context.Context, d *driver, c *cluster) error {
	for _, w := range c.workloads {
		if w.isNode() && w.driver.flags["mode"] == "node" {
			continue
		}
		controller := csi.NewControllerClient(h.process(w).conn)
		if err := h.capacity(ctx, d, c, controller); err != nil {
			return fmt.Errorf("%v: %w", w, err)
		}
		for _, s := range c.storageClasses {
			classes := []*storagev1.VolumeAttributesClass{nil}
			if d.caps["MODIFY_VOLUME"] {
				classes = append(classes, c.attributesClasses...)
			}
			for _, a := range classes {
				if err := provision(ctx, controller, d.network, s, a); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// capacity asks as csi-provisioner's --enable-capacity does: for each class, at each
// node's place, and with the empty topology that it sends for nodes without segments.
func (h *host) capacity(ctx context.Context, d *driver, c *cluster, controller csi.ControllerClient) error {
	if _, p := c.sidecar("csi-provisioner"); p == nil || !p.is("enable-capacity") {
		return nil
	}
	places := []*csi.Topology{{}}
	for _, w := range c.workloads {
		if !w.isNode() {
			continue
		}
		info, err := csi.NewNodeClient(h.process(w).conn).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		if err != nil {
			return err
		}
		if len(info.GetAccessibleTopology().GetSegments()) == 0 {
			return fmt.Errorf("NodeGetInfo of %v has no accessible_topology: %v", w, info)
		}
		places = append(places, info.GetAccessibleTopology())
	}
	for _, s := range c.storageClasses {
		for _, at := range places {
			r, err := controller.GetCapacity(ctx, &csi.GetCapacityRequest{Parameters: s.Parameters, AccessibleTopology: at})
			if err != nil || r.GetMaximumVolumeSize().GetValue() <= 0 {
				return fmt.Errorf("StorageClass %s: want capacity at %v: %v, %w", s.Name, at, r, err)
			}
		}
	}
	return nil
}

func provision(ctx context.Context, controller csi.ControllerClient, network bool, s *storagev1.StorageClass, a *storagev1.VolumeAttributesClass) error {
	req := &csi.CreateVolumeRequest{
		Name:          "pvc-" + s.Name,
		CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 30},
		Parameters:    map[string]string{},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
				FsType: s.Parameters["csi.storage.k8s.io/fstype"], MountFlags: s.MountOptions,
			}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		}},
	}
	for k, v := range s.Parameters {
		if !strings.HasPrefix(k, "csi.storage.k8s.io/") {
			req.Parameters[k] = v
		}
	}
	for _, k := range []string{"pvc/name", "pvc/namespace", "pv/name"} { // --extra-create-metadata
		req.Parameters["csi.storage.k8s.io/"+k] = "x"
	}
	flags := req.VolumeCapabilities[0].GetMount()
	if network {
		req.Parameters["server"] = "127.0.0.1"
		flags.MountFlags = append(slices.Clone(flags.MountFlags), "port=1") // tcpmux, which is not served
	}
	with := ""
	if a != nil {
		req.Name += "-" + a.Name
		req.MutableParameters = a.Parameters
		with = " with " + a.Name
	}
	r, err := controller.CreateVolume(ctx, req)
	if network {
		if c := status.Convert(err); c.Code() != codes.Unavailable || !strings.Contains(c.Message(), "127.0.0.1:1;") {
			return fmt.Errorf("StorageClass %s: want UNAVAILABLE, because nothing answers at 127.0.0.1:1: %w", s.Name, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("StorageClass %s%s: %w", s.Name, with, err)
	}
	if _, err := controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: r.GetVolume().GetVolumeId()}); err != nil {
		return fmt.Errorf("StorageClass %s%s: %w", s.Name, with, err)
	}
	return nil
}
