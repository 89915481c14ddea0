//go:build linux

// Cluster deploys the examples by their manifests on a Kubernetes of its own, on this
// machine, and runs pods with their volumes.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const usage = `usage: make test-cluster CLUSTER="[flags]"

Starts a Kubernetes cluster on this machine (etcd, the control plane, containerd and kubelet on
each node, as processes in namespaces of their own), deploys the examples with
"kubectl apply -k" of their overlays as they are, and runs the scenarios of the table.
Nothing of it is reachable from outside, and nothing of it is left at the end.

It needs root, Linux with overlay, veth and bridge, and Debian or its kin. The programs of
Kubernetes, containerd and the sidecars are built from the modules in test/cluster/build,
by version and checksum; it takes about 15 minutes on two cores, once: they are kept in
%s. Delete that to free the space.

  make test-cluster                          the scenarios that are not long
  make test-cluster CLUSTER=-long            all of them
  make test-cluster CLUSTER=-list            the scenarios
  make test-cluster CLUSTER="-run snapshot"  those that match
  make test-cluster CLUSTER=-suite           Kubernetes' own tests of storage drivers, which need
                                             another 5 minutes to build, and 12 to run
  make test-cluster CLUSTER=-nfs             nfsdriver, on nodes that are virtual machines
  make test-cluster CLUSTER=-shell           a shell beside the cluster, with blockdriver deployed
  make test-cluster CLUSTER=-build           build what is missing in the cache, and nothing else

`

type config struct {
	selection
	cache       string
	Logs        string
	Shell, List bool
	build       bool
}

// insideConfig is what the process in the namespaces gets.
type insideConfig struct {
	Dir, Images, Cgroup string
	Source              string
	Shell               bool
	selection
	Named    map[string]bool // images in the archive
	Guests   guestConfig
	Previous previousDriver
	Started  time.Time
}

var started = time.Now()

func say(format string, args ...any) {
	fmt.Printf("%5.0f s  %s\n", time.Since(started).Seconds(), fmt.Sprintf(format, args...))
}

func main() {
	runtime.LockOSThread() // a child ends with the thread that started it
	if len(os.Args) == 3 {
		switch os.Args[1] {
		case "init":
			exit(runInit(os.Args[2]))
		case "rig":
			exit(runInside(os.Args[2]))
		case "node":
			exit(runNode(os.Args[2]))
		}
	}
	cache, err := os.UserCacheDir()
	exitIf(err)
	c := config{cache: filepath.Join(cache, "csikit-cluster")}
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), usage, c.cache)
		flag.PrintDefaults()
	}
	flag.StringVar(&c.Run, "run", "", "run the scenarios whose name matches this `regexp`; with -suite, those tests")
	flag.StringVar(&c.Logs, "logs", "", "keep all logs in this `directory`")
	flag.BoolVar(&c.Long, "long", false, "run the long scenarios, too: kills, lost power, two nodes, the other overlays, the suite with its slow tests")
	flag.BoolVar(&c.Suite, "suite", false, "run Kubernetes' storage suite only; its slow and disruptive tests with -long")
	flag.BoolVar(&c.NFS, "nfs", false, "run the scenarios of nfsdriver with volumes, on virtual machines, whose kernel has NFS; with -suite, the storage suite there")
	flag.BoolVar(&c.List, "list", false, "print the scenarios")
	flag.BoolVar(&c.Shell, "shell", false, "start a shell instead of scenarios")
	flag.BoolVar(&c.build, "build", false, "build the programs only")
	flag.Parse()
	_, err = regexp.Compile(c.Run)
	exitIf(err)
	if c.List {
		list()
		return
	}
	exit(c.outside())
}

func exit(err error) {
	exitIf(err)
	os.Exit(0)
}

func exitIf(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// outside builds everything, and runs the cluster in namespaces.
func (c config) outside() (err error) {
	if os.Geteuid() != 0 {
		return errors.New("it needs root: for mounts, namespaces and loop devices")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := chdirToModule(); err != nil {
		return err
	}
	if err := os.MkdirAll(c.cache, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(c.cache, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.New("another one is running")
	}
	// What a killed one left.
	left, err := os.ReadFile(filepath.Join(c.cache, "lock"))
	if err != nil {
		return err
	}
	if dir := string(left); dir != "" {
		if err := cleanUp(dir); err != nil {
			return err
		}
	}
	unfinished, _ := filepath.Glob(filepath.Join(c.cache, "unfinished*"))
	for _, dir := range unfinished {
		os.RemoveAll(dir)
	}

	path, err := buildAll(ctx, c.cache, c.modules())
	if err != nil {
		return err
	}
	programs, err := debianRoot(ctx, c.cache, "runc", "busybox-static")
	if err != nil {
		return err
	}
	if c.build {
		return nil
	}
	dir, err := os.MkdirTemp("", "cluster")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.cache, "lock"), []byte(dir), 0o644); err != nil {
		return err
	}
	defer func() {
		if c.Logs != "" {
			saveLogs(dir, c.Logs)
		}
		if err = errors.Join(err, cleanUp(dir)); err == nil {
			err = os.Truncate(filepath.Join(c.cache, "lock"), 0)
		}
	}()
	path = append(path, filepath.Join(programs, "usr/sbin"), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	if err := os.Setenv("PATH", strings.Join(path, ":")+":"+os.Getenv("PATH")); err != nil {
		return err
	}
	archive := filepath.Join(dir, "images.tar")
	named, previous, err := makeImages(ctx, c, dir, archive, programs)
	if err != nil {
		return fmt.Errorf("images: %w", err)
	}
	if err := copyCRDs(ctx, filepath.Join(dir, "crd")); err != nil {
		return err
	}
	var guests guestConfig
	if c.withGuests() {
		if guests, err = prepareGuests(ctx, dir, c.cache); err != nil {
			return err
		}
	}
	source, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	argument, err := json.Marshal(insideConfig{
		Dir: dir, Images: archive, Cgroup: filepath.Base(dir), Source: source, Shell: c.Shell, selection: c.selection, Named: named, Guests: guests, Previous: previous, Started: started,
	})
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", "init", string(argument))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
		Setpgid:    !c.Shell,
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if !c.Shell {
		defer context.AfterFunc(ctx, func() { cmd.Process.Kill() })()
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		return errors.New("failed")
	}
	return nil
}

// copyCRDs copies those of snapshots from the module of the snapshotter's client.
func copyCRDs(ctx context.Context, to string) error {
	out, err := exec.CommandContext(ctx, "go", "list", "-modfile=build/sidecars.mod", "-m", "-f", "{{.Dir}}", kubernetesCSI+"external-snapshotter/client/v8").Output()
	if err != nil {
		return fmt.Errorf("snapshot CRDs: %w", err)
	}
	return os.CopyFS(to, os.DirFS(filepath.Join(strings.TrimSpace(string(out)), "config/crd")))
}

func chdirToModule() error {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return err
	}
	root := filepath.Dir(strings.TrimSpace(string(out)))
	if filepath.Base(root) != "cluster" {
		root = filepath.Join(root, "test/cluster")
	}
	return os.Chdir(root)
}

// runInit is the first process in the namespaces: what runs in them ends with it.
func runInit(argument string) error {
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := remount("proc", "/proc"); err != nil {
		return err
	}
	if err := mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	ignored := make(chan os.Signal, 1) // of a terminal: the shell's
	signal.Notify(ignored, os.Interrupt)
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"cluster", "rig", argument}, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return os.NewSyscallError("wait4", err)
		case ended == pid && status.Exited():
			os.Exit(status.ExitStatus())
		case ended == pid:
			return fmt.Errorf("ended with signal %v", status.Signal())
		}
	}
}

// modules returns those with the programs that are needed.
func (c config) modules() []buildModule {
	modules := slices.Clone(buildModules)
	if c.withSuite() {
		modules = append(modules, suiteModule)
	}
	if c.withHelm() {
		modules = append(modules, helmModule)
	}
	return modules
}
