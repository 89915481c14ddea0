package main

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

	"github.com/csikit/csikit/nodeops"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// mounter makes the directory of an export appear on this machine, and opens it. Both
// methods may block as long as the server likes.
type mounter interface {
	Mount(e export) (*os.Root, error)
	Unmount(e export) error
}

// exports are the mounts that the controller itself works in: one for each export,
// however many calls use it, for as long as one does and a little longer.
type exports struct {
	mounter mounter
	linger  time.Duration // how long a mount outlives its last user
	log     *slog.Logger

	askFor     func(*os.File) error // these are each share's
	lockWithin time.Duration

	mu     sync.Mutex
	open   map[export]*mounted
	shares map[string]*share
	over   bool // after Close
}

type mounted struct {
	export
	all *exports

	// turn is held by whoever mounts or unmounts, opens or closes, which may take long.
	turn sync.Mutex
	// The rest is guarded by exports.mu.
	users int
	store *store // nil while there is no user
	idle  *time.Timer
}

func newExports(m mounter, linger time.Duration, log *slog.Logger) *exports {
	return &exports{mounter: m, linger: linger, log: log, askFor: lockFile, lockWithin: 20 * time.Second, open: map[export]*mounted{}, shares: map[string]*share{}}
}

// Use runs fn with the store of the export, which is mounted if it is not, and
// mounted anew if its handles are stale: the server was set up again. It blocks as
// long as the server likes; call it from servers.Do.
func (x *exports) Use(e export, fn func(*store) error) error {
	for try := 1; ; try++ {
		err := x.use(e, fn)
		if !errors.Is(err, syscall.ESTALE) || try == 3 {
			return err
		}
		x.log.Warn("the export's handles are stale; mounting it again", "export", e.String(), "error", err)
	}
}

func (x *exports) use(e export, fn func(*store) error) error {
	m := x.get(e)
	defer m.release() // when fn panics, too
	s, err := m.acquire()
	if err != nil {
		return err
	}
	return fn(s)
}

// get counts the caller as a user.
func (x *exports) get(e export) *mounted {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.open[e]
	if m == nil {
		m = &mounted{export: e, all: x}
		x.open[e] = m
	}
	m.users++
	if m.idle != nil {
		m.idle.Stop()
	}
	return m
}

// acquire mounts the export for the first of its users. The mounter finds out
// whether it is mounted already and alive.
func (m *mounted) acquire() (*store, error) {
	m.turn.Lock()
	defer m.turn.Unlock()
	m.all.mu.Lock()
	s := m.store
	m.all.mu.Unlock()
	if s != nil {
		return s, nil
	}
	root, err := m.all.mounter.Mount(m.export)
	if err != nil {
		return nil, err
	}
	s = &store{export: m.export, root: root, log: m.all.log.With("export", m.String()), share: m.all.share(m.export)}
	s.join()
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	m.store = s
	return s, nil
}

func (x *exports) share(e export) *share {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.shares[e.String()]
	if s == nil {
		s = &share{askFor: x.askFor, lockWithin: x.lockWithin}
		x.shares[e.String()] = s
	}
	return s
}

// release closes what keeps the mount busy once the last user has gone.
func (m *mounted) release() {
	m.turn.Lock()
	defer m.turn.Unlock()
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
		last.close() // without mu: it may have to ask the server
	}
}

// unmountIfIdle unmounts what nobody uses. What is busy all the same is tried again. A
// timer may be late: by then the export may be another one's to mount and unmount.
func (m *mounted) unmountIfIdle() {
	m.turn.Lock()
	defer m.turn.Unlock()
	x := m.all
	x.mu.Lock()
	idle := m.users == 0 && x.open[m.export] == m
	x.mu.Unlock()
	if !idle {
		return
	}
	err := x.mounter.Unmount(m.export)
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case m.users > 0: // who waits for the turn mounts it again
	case err == nil:
		delete(x.open, m.export)
	case x.over:
		x.log.Warn("unmount an export that nobody uses; the next start tries again", "export", m.String(), "error", err)
	default:
		x.log.Warn("unmount an export that nobody uses; it is tried again", "export", m.String(), "error", err)
		m.idle = time.AfterFunc(max(x.linger, time.Second), m.unmountIfIdle)
	}
}

// Close waits a little for those who use an export, and unmounts what nobody uses any
// more. What still hangs stays, and is unmounted at the next start.
func (x *exports) Close() {
	for end := time.Now().Add(2 * time.Second); x.used() && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	x.mu.Lock()
	x.over = true
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
	case <-time.After(closeWithin):
		x.log.Warn("exports are still mounted whose server does not answer; the next start unmounts them")
	}
}

// closeWithin is less than a pod gets to end.
const closeWithin = 15 * time.Second

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

// nfsMounts mounts exports below a directory of its own.
type nfsMounts struct {
	dir      string
	fsType   string
	patience time.Duration
	ops      *nodeops.Node
	lock     *os.File
}

// newNFSMounts unmounts what an earlier process left behind. The directory is this
// process's until Close: another one would unmount what it works in.
func newNFSMounts(ctx context.Context, dir, fsType string, patience time.Duration, ops *nodeops.Node, log *slog.Logger) (*nfsMounts, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := lockFile(lock); err != nil {
		lock.Close()
		return nil, fmt.Errorf("-mount-dir %s is used by another process, maybe: %w", dir, err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "export-*"))
	if err != nil {
		lock.Close()
		return nil, err
	}
	var all sync.WaitGroup
	for _, path := range left {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			if err := ops.Unpublish(ctx, nodeops.UnpublishRequest{VolumeID: filepath.Base(path), TargetPath: path}); err != nil {
				log.Warn("unmount what an earlier process left", "path", path, "error", err)
			}
		})
	}
	all.Wait()
	return &nfsMounts{dir, fsType, patience, ops, lock}, nil
}

func (m *nfsMounts) Close() error { return m.lock.Close() }

func (m *nfsMounts) path(e export) string {
	return filepath.Join(m.dir, "export-"+digest(e.String()+"#"+e.Options))
}

// Mount needs no lock: nodeops finds what is mounted, compares it, and replaces it
// if it is dead. Something else in this driver's own place is what an earlier process
// left, and goes.
func (m *nfsMounts) Mount(e export) (*os.Root, error) {
	path := m.path(e)
	ctx, cancel := context.WithTimeout(context.Background(), 2*m.patience)
	defer cancel()
	share := nodeops.PublishShareRequest{
		VolumeID: e.String(), Source: e.source(""), FSType: m.fsType, TargetPath: path,
		// Without locks NFSv3 needs no rpc.statd here.
		MountFlags: withVersion(slices.Concat(always, []string{"noexec", "nolock"}, e.options())),
	}
	err := m.ops.PublishShare(ctx, share)
	if status.Code(err) == codes.AlreadyExists {
		if err = m.ops.Unpublish(ctx, nodeops.UnpublishRequest{VolumeID: e.String(), TargetPath: path}); err == nil {
			err = m.ops.PublishShare(ctx, share)
		}
	}
	switch status.Code(err) {
	case codes.Internal, codes.NotFound: // the helper's answer, and nothing is mounted
		return nil, fmt.Errorf("mount %s: %w: %w", e, errRefused, err)
	}
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", e, err)
	}
	return openMounted(path)
}

// openMounted opens what is mounted at a path. If that is nothing, because somebody took it
// away this moment, volumes must not be made on the disk of this machine.
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
		return nil, fmt.Errorf("%s: %w: nothing is mounted there", path, cmp.Or(err, errBusy))
	}
	return root, nil
}

func (m *nfsMounts) Unmount(e export) error {
	ctx, cancel := context.WithTimeout(context.Background(), m.patience)
	defer cancel()
	return m.ops.Unpublish(ctx, nodeops.UnpublishRequest{VolumeID: e.String(), TargetPath: m.path(e)})
}

// localDirs stands in for servers: an export is a directory. It is for tests and
// demonstrations on one machine.
type localDirs string

func (l localDirs) Mount(e export) (*os.Root, error) {
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

func (l localDirs) Unmount(export) error { return nil }
