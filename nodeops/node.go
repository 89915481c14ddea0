package nodeops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/mountapi"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/exec"
)

// Config configures a [Node]. The zero value works.
type Config struct {
	// Logger gets a warning before each mkfs and each unmount that the CO did not
	// request, and every command line at debug level. nil discards the log.
	Logger *slog.Logger

	// TracerProvider gets a span for each operation, each program that is run and each
	// other step that takes long. nil discards them.
	TracerProvider trace.TracerProvider

	// MeterProvider gets the metrics that the package documentation lists. nil discards
	// them.
	MeterProvider metric.MeterProvider

	// Exec starts the programs. nil starts each in a process group of its own, which is
	// killed as a whole.
	Exec exec.Interface

	// DeviceWait is how long to wait for a device that does not exist yet: udev creates
	// /dev/disk/by-id links some time after the device was attached. 0 means 5 seconds,
	// a negative value not to wait.
	DeviceWait time.Duration

	// MaxFormats limits the number of concurrent mkfs; further ones wait until one ends,
	// or their context. 0 means no limit.
	MaxFormats int

	// HelperTimeout is how long a mount helper of a share may run before it is killed. 0
	// means 90 seconds: kubelet's timeout is two minutes.
	HelperTimeout time.Duration

	// Unmount selects how Unpublish treats a mount that hangs. It does not apply to
	// Unstage: a file system on a device cannot be forced, and must not stay active.
	Unmount UnmountPolicy

	// UnmountTimeout is how long an unmount, or a check whether a busy mount responds,
	// may take before the mount is considered hung. 0 means 10 seconds. It has no effect
	// with UnmountWait.
	UnmountTimeout time.Duration

	// IsOrphaned is called by Unstage for each path at which the volume is still
	// published. True means that no pod uses that publication now or later, for instance
	// because the pod's directory contains nothing else; it is unpublished then. nil
	// means that none is orphaned. It must not block.
	IsOrphaned func(targetPath string) bool

	// DeviceCgroup states that the CO prevents writes of pods with a read-only raw block
	// volume by the device cgroup, as kubelet does. Then PublishBlock does not make the
	// device itself refuse writes, and a device can be published read-only and read-write.
	DeviceCgroup bool

	// Blocking runs the calls that the kernel may block; share one to list all calls in
	// flight in one place. nil creates one for this Node. Its Limit applies to statistics and
	// to what mounts or expands separately; teardown is never refused.
	Blocking *blocking.Group
}

// Node does the node half of a CSI driver. Create one with [New].
type Node struct {
	log       *slog.Logger
	telemetry telemetry
	exec      exec.Interface
	blocking  *blocking.Group

	// Each lane has its own limit of calls that hang: hung statistics must not keep a healthy
	// volume from being mounted, nor hung mounts another volume from being unmounted, after
	// which there are fewer.
	mounting, measuring, teardown *blocking.Lane

	deviceWait     time.Duration
	helperTimeout  time.Duration
	unmount        UnmountPolicy
	unmountTimeout time.Duration
	isOrphaned     func(string) bool
	deviceCgroup   bool
	formats        chan struct{} // one slot per mkfs that may run

	mu   sync.Mutex
	held map[string]chan struct{} // closed when the lock on the name is released

	unmounts atomic.Int64 // how many were started, see unmountBounded

	measured map[string]measurement // by volume path, until it is unpublished or unstaged
	dropped  int                    // how often an answer was dropped from it
}

// New checks the configuration and returns a Node. It has no side effects.
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
		return nil, fmt.Errorf("nodeops: unknown UnmountPolicy %d", n.unmount)
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
	limit := max(n.blocking.Limit, 0)
	n.mounting, n.measuring, n.teardown = n.blocking.Lane(limit), n.blocking.Lane(limit), n.blocking.Lane(blocking.NoLimit)
	var err error
	n.telemetry, err = newTelemetry(cfg.TracerProvider, cfg.MeterProvider, n)
	return n, err
}

// Device is the block device that holds a volume. The fields other than Path are optional
// and checked on the open descriptor before the device is used: a device path may refer to
// another disk than when the volume was attached. What differs or cannot be read is
// csierr.Precondition.
//
// Stage and publish wait for the multipath device, and then refuse, if Path refers to one of
// its paths, as a link in /dev/disk/by-id does until udev has changed it. While no multipath
// device is assembled, a path cannot be distinguished from a disk: set DMUUID.
type Device struct {
	Path   string // "/dev/…"; symlinks such as /dev/disk/by-id/… are followed
	Serial string // of the disk: serial in sysfs (NVMe, virtio), or the SCSI unit serial number (VPD page 0x80)
	WWID   string // of the disk: wwid in sysfs, such as "naa.…", "t10.…", "eui.…" or "nvme.…"
	DMUUID string // of a device of device-mapper: dm/uuid in sysfs, such as "mpath-…", "LVM-…" or "CRYPT-…"
	Size   int64  // bytes; must equal the device size

	// Partition is the number of the partition of the disk with that Serial and WWID. 0 means
	// the whole disk, if one of these is set.
	Partition int

	// Check returns an error if this is not the device of the volume. It gets the device's
	// directory in sysfs, such as /sys/devices/…/block/sda/sda1, and must not block. nil
	// checks nothing.
	Check func(sysfsDir string) error `json:"-"`
}

// InFlight lists the operations in flight, oldest first, by path. One that is minutes old
// hangs in the kernel.
func (n *Node) InFlight() []blocking.Call { return n.blocking.Snapshot() }

// run runs fn as the operation op on the path; see serialized.
func (n *Node) run(ctx context.Context, op, volumeID, path string, fn func(context.Context, resolvedPath) error) error {
	ctx, done := n.telemetry.operation(ctx, op, volumeID, path)
	lane := n.mounting
	if op == "unpublish" || op == "unstage" {
		lane = n.teardown
	}
	err := wrap(op, volumeID, path, n.serialized(ctx, lane, path, fn))
	done(err)
	return err
}

// runMount is run for an operation that mounts a volume at the path. After a final code
// kubelet assumes that nothing is mounted and never unmounts the path: while a mount of an
// earlier call is at the path, the code is not final. A mount other than the requested one
// remains a conflict, as the specification demands.
func (n *Node) runMount(ctx context.Context, op, volumeID, path string, fn func(context.Context, resolvedPath) error) error {
	return n.run(ctx, op, volumeID, path, func(ctx context.Context, target resolvedPath) error {
		err := fn(ctx, target)
		if err == nil {
			return nil
		}
		var f *fault
		if errors.As(err, &f) && (f.kind == csierr.Conflict || f.kind == csierr.Busy || f.kind == csierr.Uncertain) {
			return err
		}
		on, e := []mountapi.Mount(nil), target.err
		if e == nil {
			on, e = target.point.At()
		}
		if len(on) == 0 && (e == nil || errors.Is(e, fs.ErrNotExist) || errors.Is(e, syscall.ENOTDIR)) {
			if f == nil && csierr.KindOf(err) == csierr.Unknown {
				err = &fault{kind: csierr.Internal, err: err}
			}
			return err
		}
		return &fault{kind: csierr.Uncertain, err: err}
	})
}

// serialized runs fn as the only operation on the path, and stops waiting for it, but
// does not interrupt it, when ctx ends. A call that finds another operation in flight on
// the path waits for it and then runs its own: the other request may have been a
// different one, and whatever it has already done is found and not changed.
//
// The context that fn receives is the caller's; an operation that has begun does not
// stop when it ends.
func (n *Node) serialized(ctx context.Context, lane *blocking.Lane, path string, fn func(context.Context, resolvedPath) error) error {
	path = filepath.Clean(path)
	for {
		// The path is resolved on the goroutine of the operation, as that may block on a hung mount
		// among its parents; the operation has the resolved path as its key.
		v, joined, err := lane.DoRekeyed(ctx, path+" (resolve)", func(rekey func(string) bool) (any, error) {
			target := openPath(path)
			defer target.close()
			if !rekey(target.path) {
				return target.path, nil
			}
			if err := ctx.Err(); err != nil { // the caller has left
				return nil, err
			}
			return nil, fn(ctx, target)
		})
		if isPending(err) {
			return err
		}
		if taken, ok := v.(string); ok && !joined {
			err = n.blocking.Wait(ctx, taken)
			if err != nil {
				return err
			}
		} else if !joined {
			return err
		}
		if err := ctx.Err(); err != nil { // fn has not run
			return err
		}
	}
}

// resolvedPath is a path from the CO. It is resolved once per operation: the path that
// is locked is the one that is checked, mounted and unmounted, even if a symlink in the
// requested one changes meanwhile. All spellings of a path resolve to the same one.
type resolvedPath struct {
	point *mountapi.Point // nil if err is set
	path  string          // as the mount table shows it; if err is set, the requested path, cleaned
	err   error           // why the parent directory cannot be resolved
}

func openPath(path string) resolvedPath {
	point, err := mountapi.OpenPoint(path)
	if err != nil {
		return resolvedPath{nil, path, err}
	}
	return resolvedPath{point, point.Path(), nil}
}

func (p resolvedPath) close() {
	if p.point != nil {
		p.point.Close()
	}
}

// resolve resolves the path, which may block on a hung mount among its parents, and does not
// keep it open.
func (n *Node) resolve(ctx context.Context, lane *blocking.Lane, path string) (resolvedPath, error) {
	path = filepath.Clean(path)
	v, _, err := lane.Do(ctx, path+" (resolve only)", func() (any, error) {
		target := openPath(path)
		target.close()
		return resolvedPath{nil, target.path, target.err}, nil
	})
	if err != nil {
		return resolvedPath{}, err
	}
	return v.(resolvedPath), nil
}

// target returns the path for an operation that mounts: its parent has to exist.
func (p resolvedPath) target() (*mountapi.Point, error) {
	if errors.Is(p.err, fs.ErrNotExist) {
		return nil, faultf(csierr.Precondition, "the parent directory of %s does not exist; the CO creates it: %w", p.path, p.err)
	}
	return p.point, p.err
}

// volume returns the path for an operation on a mounted volume: without its parent there is none.
func (p resolvedPath) volume() (string, error) {
	if errors.Is(p.err, fs.ErrNotExist) || errors.Is(p.err, syscall.ENOTDIR) {
		return "", errNotMounted
	}
	return p.path, p.err
}

var errNotMounted = faultf(csierr.NotFound, "no volume is mounted at the path")

// lock locks the name of a device or share until unlock is called. It is for use inside
// of run, and held for a few system calls only; of these a mount may hang with its device.
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
