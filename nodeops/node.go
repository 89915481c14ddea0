package nodeops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/internal/mountapi"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/exec"
)

// Config is what a [Node] is made of. The zero value works.
type Config struct {
	// Logger gets a line before each mkfs (warning level) and one per program
	// run (debug level). nil discards them.
	Logger *slog.Logger

	// TracerProvider gets a span for each operation, each program that is run and each
	// other step that takes long. nil discards them.
	TracerProvider trace.TracerProvider

	// MeterProvider gets how long operations took, how often mkfs was started, and how
	// much work is parked in the kernel. nil discards it.
	MeterProvider metric.MeterProvider

	// Exec starts the programs. nil starts them in a process group of their own
	// that is killed as a whole.
	Exec exec.Interface

	// DeviceWait is how long a device that is not there yet is waited for, as udev
	// makes /dev/disk/by-id links some time after the device was attached. 0 is 5
	// seconds, less than 0 no time.
	DeviceWait time.Duration

	// MaxFormats is how many mkfs run at once; more wait until one of them ends, or
	// their context. 0 sets no limit.
	MaxFormats int

	// HelperTimeout is how long a mount helper of a share may take before it is
	// killed. 0 is 90 seconds: kubelet waits for two minutes.
	HelperTimeout time.Duration

	// Unmount is what Unpublish may do about a mount that hangs. Unstage does nothing:
	// what is on a device cannot be forced, and must not be left behind.
	Unmount UnmountPolicy

	// UnmountTimeout is how long an unmount, or a look whether a busy mount answers,
	// may take before the mount is said to hang. 0 is 10 seconds. Without a policy
	// in Unmount it has no meaning.
	UnmountTimeout time.Duration

	// IsOrphaned is asked about each path at which a volume that is to be unstaged is
	// still published. True says that no pod uses it any more and none will, for
	// instance because the pod's directory holds nothing but it; it is
	// unpublished then. nil is false for all. It must not block.
	IsOrphaned func(targetPath string) bool

	// DeviceCgroup says that the CO keeps the pod of a read-only raw block volume from
	// writing by the device cgroup, as kubelet does. Then PublishBlock does not make the
	// device itself refuse writes, and read-only pods may stand beside read-write ones.
	DeviceCgroup bool

	// Blocking runs what the kernel may block; share one to see all stuck work
	// in one place. nil makes one for this Node.
	Blocking *blocking.Group
}

// Node does the node half of a CSI driver. Make one with [New].
type Node struct {
	log       *slog.Logger
	telemetry telemetry
	exec      exec.Interface
	blocking  *blocking.Group

	deviceWait     time.Duration
	helperTimeout  time.Duration
	unmount        UnmountPolicy
	unmountTimeout time.Duration
	isOrphaned     func(string) bool
	deviceCgroup   bool
	formats        chan struct{} // has room for as many as may run at once

	mu   sync.Mutex
	held map[string]chan struct{} // closed when the name is free again

	unmounts atomic.Int64 // how many were begun, see unmountBounded

	measured  map[string]measurement // by volume path, until it is unpublished or unstaged
	forgotten int                    // how often one was dropped from it
}

// New returns a Node. It starts nothing and touches nothing.
func New(cfg Config) (*Node, error) {
	n := &Node{
		log: cfg.Logger, exec: cfg.Exec, blocking: cfg.Blocking,
		deviceWait:     cmp.Or(cfg.DeviceWait, 5*time.Second),
		helperTimeout:  cmp.Or(cfg.HelperTimeout, 90*time.Second),
		unmount:        cfg.Unmount,
		unmountTimeout: cmp.Or(cfg.UnmountTimeout, 10*time.Second),
		isOrphaned:     cfg.IsOrphaned,
		deviceCgroup:   cfg.DeviceCgroup,
	}
	if n.helperTimeout < 0 || n.unmountTimeout < 0 {
		return nil, fmt.Errorf("nodeops: HelperTimeout is %v and UnmountTimeout %v, want 0 (the default) or more", n.helperTimeout, n.unmountTimeout)
	}
	if n.unmount < UnmountWait || n.unmount > UnmountLazy {
		return nil, fmt.Errorf("nodeops: there is no UnmountPolicy %d", n.unmount)
	}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	if n.exec == nil {
		n.exec = newRunner()
	}
	if cfg.MaxFormats < 0 {
		return nil, fmt.Errorf("nodeops: MaxFormats is %d, want 0 (no limit) or more", cfg.MaxFormats)
	}
	if cfg.MaxFormats > 0 {
		n.formats = make(chan struct{}, cfg.MaxFormats)
	}
	if n.blocking == nil {
		n.blocking = new(blocking.Group)
	}
	var err error
	n.telemetry, err = newTelemetry(cfg.TracerProvider, cfg.MeterProvider, n)
	return n, err
}

// Device is the block device that holds a volume. What is given besides Path is
// checked on the open descriptor before the device is used: a device path may
// name another disk than a moment ago.
type Device struct {
	Path   string // "/dev/…"; symlinks such as /dev/disk/by-id/… are followed
	Serial string // as sysfs shows it
	WWID   string // as sysfs shows it
	Size   int64  // bytes, exactly
}

// InFlight lists the work that is under way, oldest first: the key is the path
// that is worked on. What has stood there for minutes hangs in the kernel.
func (n *Node) InFlight() []blocking.Call { return n.blocking.Snapshot() }

// run does fn as the operation op on the path.
func (n *Node) run(ctx context.Context, op, volumeID, path string, fn func(context.Context) error) error {
	ctx, done := n.telemetry.operation(ctx, op, volumeID, path)
	err := wrap(op, volumeID, path, n.alone(ctx, path, fn))
	done(err)
	return err
}

// runMount is run for an operation that mounts something at the path. On a final code
// kubelet takes nothing to be mounted and never takes it down: while something is,
// by an earlier call, the code is not final. That it is something else remains a
// conflict, as the specification has it.
func (n *Node) runMount(ctx context.Context, op, volumeID, path string, fn func(context.Context) error) error {
	return n.run(ctx, op, volumeID, path, func(ctx context.Context) error {
		err := fn(ctx)
		if err == nil {
			return nil
		}
		var f *fault
		if errors.As(err, &f) && (f.kind == KindConflict || f.kind == KindBusy || f.kind == KindUncertain) {
			return err
		}
		if on, e := mountapi.At(path); e == nil && len(on) == 0 {
			return err
		}
		return &fault{kind: KindUncertain, err: err}
	})
}

// alone does fn as the only work on path and gives up waiting, not working, when
// ctx ends. Who finds work on the path under way waits for it and then does its
// own: the other call may have asked for something else, and what it did in our
// favour is found and taken for done.
//
// The context that fn gets ends with the caller's patience; what is begun is not to
// end with it.
func (n *Node) alone(ctx context.Context, path string, fn func(context.Context) error) error {
	key, err := n.key(ctx, path)
	if err != nil {
		return err
	}
	for {
		_, joined, err := n.blocking.Do(ctx, key, func() (any, error) { return nil, fn(ctx) })
		if !joined || isPending(err) {
			return err
		}
		if err := ctx.Err(); err != nil { // nothing of ours was done
			return err
		}
	}
}

// key is one name for all spellings of a path: two calls for one target, of which
// one goes through a symlink, must meet.
func (n *Node) key(ctx context.Context, path string) (string, error) {
	path = filepath.Clean(path)
	v, _, err := n.blocking.Do(ctx, path+" (resolve)", func() (any, error) { return spelling(path), nil })
	if err != nil {
		return "", err
	}
	return v.(string), nil
}

func spelling(path string) string {
	if r, err := mountapi.Resolve(path); err == nil {
		return r
	}
	return filepath.Clean(path) // what is wrong with it is for the operation to say
}

// lock takes the name of a device until unlock is called, inside of run. It is held for
// as long as a few system calls take; of these a mount may hang with its device.
func (n *Node) lock(name string) (unlock func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.held[name] != nil {
		free := n.held[name]
		n.mu.Unlock()
		<-free
		n.mu.Lock()
	}
	if n.held == nil {
		n.held = make(map[string]chan struct{})
	}
	free := make(chan struct{})
	n.held[name] = free
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.held, name)
		close(free)
	}
}
