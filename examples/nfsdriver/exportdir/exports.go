package exportdir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/csikit/csikit/breaker"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/nfsdriver/share"
	"github.com/csikit/csikit/nodeops"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// mounter mounts an export on this machine, and opens its root. Both methods may block
// for as long as the server does not respond.
type mounter interface {
	Mount(e share.Export) (*os.Root, error)
	Unmount(e share.Export) error
}

// exports are the controller's own mounts: one per export, shared by all calls that use
// it, and unmounted some time after the last one.
type exports struct {
	mounter mounter
	linger  time.Duration // how long a mount outlives its last user
	log     *slog.Logger

	tryLock     func(*os.File) error // passed on to each share
	lockTimeout time.Duration

	mu     sync.Mutex
	open   map[share.Export]*mounted
	shares map[string]*shareDir
	closed bool
}

type mounted struct {
	share.Export
	all *exports

	// mountMu serialises mounting, opening, closing and unmounting, which may block.
	mountMu sync.Mutex
	// The rest is guarded by exports.mu.
	users int
	store *store // nil while there is no user
	idle  *time.Timer
}

func newExports(m mounter, linger time.Duration, log *slog.Logger) *exports {
	return &exports{mounter: m, linger: linger, log: log, tryLock: lockFile, lockTimeout: 20 * time.Second, open: map[share.Export]*mounted{}, shares: map[string]*shareDir{}}
}

// Use runs fn with the store of the export, mounts the export if necessary, and mounts
// it again if its file handles are stale (ESTALE). It may block
// for as long as the server does not respond; call it from breaker.Group.Do.
func (x *exports) Use(e share.Export, fn func(*store) error) error {
	for try := 1; ; try++ {
		err := x.use(e, fn)
		if !errors.Is(err, syscall.ESTALE) || try == 3 {
			return err
		}
		x.log.Warn("stale file handle; remounting the export", "export", e.String(), "error", err)
	}
}

func (x *exports) use(e share.Export, fn func(*store) error) error {
	m := x.get(e)
	defer m.release() // even if fn panics
	s, err := m.acquire()
	if err != nil {
		return err
	}
	return fn(s)
}

// get returns the export's mount and counts the caller as a user.
func (x *exports) get(e share.Export) *mounted {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.open[e]
	if m == nil {
		m = &mounted{Export: e, all: x}
		x.open[e] = m
	}
	m.users++
	if m.idle != nil {
		m.idle.Stop()
	}
	return m
}

// acquire mounts the export for the first of its users. The mounter checks whether
// it is already mounted, and healthy.
func (m *mounted) acquire() (*store, error) {
	m.mountMu.Lock()
	defer m.mountMu.Unlock()
	m.all.mu.Lock()
	s := m.store
	m.all.mu.Unlock()
	if s != nil {
		return s, nil
	}
	root, err := m.all.mounter.Mount(m.Export)
	if err != nil {
		return nil, err
	}
	s = &store{Export: m.Export, root: root, log: m.all.log.With("export", m.String()), shareDir: m.all.shareDir(m.Export)}
	s.join()
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	m.store = s
	return s, nil
}

func (x *exports) shareDir(e share.Export) *shareDir {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.shares[e.String()]
	if s == nil {
		s = &shareDir{tryLock: x.tryLock, lockTimeout: x.lockTimeout}
		x.shares[e.String()] = s
	}
	return s
}

// release closes the store, which keeps the mount busy, after the last user.
func (m *mounted) release() {
	m.mountMu.Lock()
	defer m.mountMu.Unlock()
	x := m.all
	x.mu.Lock()
	m.users--
	var last *store
	if m.users == 0 {
		last, m.store = m.store, nil
		m.idle = time.AfterFunc(x.linger, m.unmountIfIdle)
	}
	x.mu.Unlock()
	if last != nil {
		last.close() // without mu: it may send a request to the server
	}
}

// unmountIfIdle unmounts an export without users, and retries later if it is busy. The
// timer may fire late, when the export has been unmounted and mounted again.
func (m *mounted) unmountIfIdle() {
	m.mountMu.Lock()
	defer m.mountMu.Unlock()
	x := m.all
	x.mu.Lock()
	idle := m.users == 0 && x.open[m.Export] == m
	x.mu.Unlock()
	if !idle {
		return
	}
	err := x.mounter.Unmount(m.Export)
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case m.users > 0: // a user that waits for mountMu mounts it again
	case err == nil:
		delete(x.open, m.Export)
	case x.closed:
		x.log.Warn("unmount idle export; retried at the next start", "export", m.String(), "error", err)
	default:
		x.log.Warn("unmount idle export; will retry", "export", m.String(), "error", err)
		m.idle = time.AfterFunc(max(x.linger, time.Second), m.unmountIfIdle)
	}
}

// Close waits up to 2 seconds for the users of exports, and unmounts the idle ones.
// A blocked one stays mounted, and is unmounted at the next start.
func (x *exports) Close() {
	for end := time.Now().Add(2 * time.Second); x.used() && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	x.mu.Lock()
	x.closed = true
	var idle []*mounted
	for _, m := range x.open {
		if m.users == 0 && m.idle.Stop() {
			idle = append(idle, m)
		}
	}
	x.mu.Unlock()
	var all sync.WaitGroup
	for _, m := range idle {
		all.Go(m.unmountIfIdle)
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(closeTimeout):
		x.log.Warn("exports of unresponsive servers are still mounted; the next start unmounts them")
	}
}

// closeTimeout is shorter than a pod's termination grace period.
const closeTimeout = 15 * time.Second

func (x *exports) used() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, m := range x.open {
		if m.users > 0 {
			return true
		}
	}
	return false
}

// exportRow is a mount on the debug page.
type exportRow struct {
	Export string
	Users  int
}

func (x *exports) Snapshot() []exportRow {
	x.mu.Lock()
	defer x.mu.Unlock()
	var rows []exportRow
	for e, m := range x.open {
		rows = append(rows, exportRow{e.String(), m.users})
	}
	return rows
}

// nfsMounts mounts exports below its own directory.
type nfsMounts struct {
	dir     string
	fsType  string
	timeout time.Duration
	ops     *nodeops.Node
	lock    *os.File
}

// newNFSMounts unmounts what an earlier process left mounted. It locks the directory
// until Close: another process would unmount this one's exports.
func newNFSMounts(ctx context.Context, dir, fsType string, timeout time.Duration, ops *nodeops.Node, log *slog.Logger) (*nfsMounts, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := lockFile(lock); err != nil {
		lock.Close()
		return nil, fmt.Errorf("lock -mount-dir %s, which another process may use: %w", dir, err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "export-*"))
	if err != nil {
		lock.Close()
		return nil, err
	}
	var all sync.WaitGroup
	for _, path := range left {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			if err := ops.Unpublish(ctx, nodeops.UnpublishRequest{VolumeID: filepath.Base(path), TargetPath: path}); err != nil {
				log.Warn("unmount an earlier process's mount", "path", path, "error", err)
			}
		})
	}
	all.Wait()
	return &nfsMounts{dir, fsType, timeout, ops, lock}, nil
}

func (m *nfsMounts) Close() error { return m.lock.Close() }

func (m *nfsMounts) path(e share.Export) string {
	return filepath.Join(m.dir, "export-"+share.Digest(e.String()+"#"+e.Options))
}

// Mount needs no lock: nodeops compares what is mounted, and replaces it if it is
// stale. A different mount in this driver's directory is from an earlier process, and is
// unmounted.
func (m *nfsMounts) Mount(e share.Export) (*os.Root, error) {
	path := m.path(e)
	ctx, cancel := context.WithTimeout(context.Background(), 2*m.timeout)
	defer cancel()
	request := nodeops.PublishShareRequest{
		VolumeID: e.String(), Source: e.Source(""), FSType: m.fsType, TargetPath: path,
		// Without locks NFSv3 needs no rpc.statd here.
		MountFlags: share.WithVersion(slices.Concat(share.Always, []string{"noexec", "nolock"}, e.OptionList())),
	}
	err := m.ops.PublishShare(ctx, request)
	if status.Code(err) == codes.AlreadyExists {
		if err = m.ops.Unpublish(ctx, nodeops.UnpublishRequest{VolumeID: e.String(), TargetPath: path}); err == nil {
			err = m.ops.PublishShare(ctx, request)
		}
	}
	switch status.Code(err) {
	case codes.Internal, codes.NotFound: // the helper failed, and nothing is mounted
		return nil, fmt.Errorf("mount %s: %w: %w", e, errRefused, err)
	}
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", e, err)
	}
	return openMounted(path)
}

// openMounted opens the mount at a path. If there is none, because another process
// unmounted it concurrently, it fails: volumes must not be created on the local disk.
func openMounted(path string) (*os.Root, error) {
	below, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer below.Close()
	root, err := below.OpenRoot(filepath.Base(path))
	if err != nil {
		return nil, err
	}
	if err := notMounted(below, root, "."); !errors.Is(err, errMounted) {
		root.Close()
		return nil, fmt.Errorf("%s: %w: nothing is mounted there", path, cmp.Or(err, error(csierr.Busy)))
	}
	return root, nil
}

func (m *nfsMounts) Unmount(e share.Export) error {
	ctx, cancel := context.WithTimeout(context.Background(), m.timeout)
	defer cancel()
	return m.ops.Unpublish(ctx, nodeops.UnpublishRequest{VolumeID: e.String(), TargetPath: m.path(e)})
}

// localDirs replaces servers by local directories, for tests and demonstrations on one
// machine.
type localDirs string

func (l localDirs) Mount(e share.Export) (*os.Root, error) {
	dir := filepath.Join(string(l), filepath.FromSlash(e.Share))
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w: %w", e, errRefused, err)
	}
	return os.OpenRoot(dir)
}

func (l localDirs) Unmount(share.Export) error { return nil }

func withoutProbe(e share.Export) breaker.Server { return breaker.Server{Name: e.Server} }
