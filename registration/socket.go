package registration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
)

const (
	// answerTimeout is how long the process that serves the socket has to answer.
	answerTimeout = 2 * time.Second
	// unlinkTimeout bounds the wait for the lock of another instance that is creating its
	// socket, when ours is to be removed.
	unlinkTimeout = 500 * time.Millisecond
	// lockInterval is the interval between attempts to take the lock of the directory,
	// which all drivers of a node share, and each holds for less than a millisecond.
	lockInterval = 10 * time.Millisecond
	// socketAttempts is the number of attempts, one after the other, when another
	// instance interferes.
	socketAttempts = 5
)

// A socket is a registration socket that was put in place.
type socket struct {
	lis net.Listener
	// dir is kept open, and so is the socket: the kernel reuses neither inode number
	// meanwhile.
	dir  *directory
	file fs.FileInfo
	name string
	done chan struct{} // closed when lis has stopped accepting
}

// inPlace reports whether the socket is at its path and is served.
func (s *socket) inPlace(d *directory) bool {
	select {
	case <-s.done:
		return false
	default:
	}
	if !d.same(s.dir) {
		return false
	}
	now, err := d.lstat(s.name)
	return err == nil && os.SameFile(now, s.file)
}

// serve answers until the socket is closed.
func (s *socket) serve(gs *grpc.Server) {
	defer close(s.done)
	_ = gs.Serve(s.lis) // inPlace reports a failure
}

// unlink removes the file of the socket, if the path still leads to it: it may be
// the socket of a successor by now.
func (s *socket) unlink() error {
	var unlock func()
	var err error
	for deadline := time.Now().Add(unlinkTimeout); ; time.Sleep(lockInterval) {
		if unlock, err = s.dir.tryLock(); err == nil {
			break
		}
		if time.Now().After(deadline) {
			// A stale socket is replaced by the next instance; without the lock we might
			// remove one that is served.
			return fmt.Errorf("registration socket left in place: %w", err)
		}
	}
	defer unlock()
	if now, err := s.dir.lstat(s.name); err != nil || !os.SameFile(now, s.file) {
		return nil
	}
	return s.dir.remove(s.name)
}

// close stops accepting. It is called after unlink, so that the inode number cannot
// be reused before.
func (s *socket) close() {
	s.lis.Close()
	<-s.done
	s.dir.close()
}

// reconcile checks whether our socket is in place, and creates it if it is not and
// no other process serves it. With again it creates it in any case. It reports
// whether there is nothing left to do.
func (r *Registrar) reconcile(ctx context.Context, again bool) bool {
	d, err := openDirectory(r.cfg.Dir)
	if err != nil {
		r.setObstacle(SocketError, fmt.Errorf("open the registration directory, a mount of %s on the host: %w", r.cfg.KubeletDir, err))
		return false
	}
	ours := r.sock != nil && r.sock.inPlace(d)
	if ours && !again {
		d.close()
		r.clearObstacle()
		return true
	}
	s, err := r.createSocket(ctx, d, ours)
	if err != nil {
		d.close()
		state := SocketError
		if inUse := (*inUseError)(nil); errors.As(err, &inUse) {
			state = Standby
		}
		if ctx.Err() == nil {
			r.setObstacle(state, err)
		}
		return false
	}
	var reason error
	if r.sock != nil {
		switch {
		case !d.same(r.sock.dir):
			reason = errUnwatched
		case !ours:
			reason = errSocketLost
		}
		r.sock.close()
	}
	r.sock = s
	r.recordSocketCreated(reason)
	// Only now: kubelet may call immediately, and its calls are about this socket.
	go s.serve(r.server)
	return true
}

// An inUseError means that another process serves the socket.
type inUseError struct{ endpoint string }

func (e *inUseError) Error() string {
	return fmt.Sprintf("another process already serves the registration socket (driver endpoint %q); waiting until it exits", e.endpoint)
}

var (
	errChanged = errors.New("another instance is replacing the socket")
	errBusy    = errors.New("another instance has locked the registration directory")
)

// createSocket puts our socket in place, unless the path is a socket that is served or
// another kind of file.
func (r *Registrar) createSocket(ctx context.Context, d *directory, ours bool) (s *socket, err error) {
	for range socketAttempts {
		var found fs.FileInfo
		if found, err = r.replaceable(ctx, d, ours); err == nil {
			s, err = r.placeSocket(d, found)
		}
		if !errors.Is(err, errChanged) && !errors.Is(err, errBusy) {
			break
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(lockInterval):
		}
	}
	return s, err
}

// replaceable returns the existing socket that may be replaced, or nil if the path does
// not exist.
func (r *Registrar) replaceable(ctx context.Context, d *directory, ours bool) (fs.FileInfo, error) {
	found, err := d.lstat(r.cfg.socketName())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case found.Mode().Type() != fs.ModeSocket:
		return nil, notASocket(found, r.path)
	case ours && os.SameFile(found, r.sock.file):
		return found, nil
	}
	other, err := probeSocket(ctx, d.at(r.cfg.socketName()), r.answerTimeout)
	switch {
	case err == nil && (other.kind != kindCSI || other.name != r.cfg.DriverName):
		return nil, fmt.Errorf("another program serves the registration socket (its type is %q, its name %q): stop it, or move its socket", other.kind, other.name)
	case err == nil:
		return nil, &inUseError{other.endpoint}
	case errors.Is(err, errStale):
		return found, nil
	case errors.Is(err, errChanged):
		return nil, err
	}
	return nil, fmt.Errorf("a socket exists, and whether a process serves it cannot be determined: %w", err)
}

// placeSocket creates our socket in d, not served yet. It replaces the file found,
// which is ours or stale, and no other.
func (r *Registrar) placeSocket(d *directory, found fs.FileInfo) (*socket, error) {
	// Without the lock two instances could both find the stale socket, and the slower
	// one replace the new socket of the faster one.
	unlock, err := d.tryLock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	// A stale socket stays stale, unless it was replaced: by another inode, or by one
	// with the same, reused, inode number.
	name := r.cfg.socketName()
	if now, err := d.lstat(name); found != nil && (err != nil || !os.SameFile(now, found) || !now.ModTime().Equal(found.ModTime())) {
		return nil, errChanged
	}

	// kubelet ignores a name that begins with a dot. Under it the socket
	// gets its mode and starts to listen, and then appears by one rename, which is
	// one event to kubelet. (kubelet stats the file before it checks the name, and only
	// logs an error if the file is gone by then.)
	temporary := "." + name
	if err := d.removeSocket(temporary); err != nil { // of an instance that was killed here
		return nil, err
	}
	lis, err := d.listen(temporary)
	if err != nil {
		return nil, fmt.Errorf("create the registration socket: %w", err)
	}
	lis.SetUnlinkOnClose(false) // it would unlink by name, even the socket of another instance
	file, err := d.lstat(temporary)
	if err == nil {
		if found == nil {
			err = d.renameNew(temporary, name)
		} else {
			err = d.known(os.Rename(d.at(temporary), d.at(name)), name)
		}
	}
	if err != nil {
		return nil, errors.Join(err, d.removeSocket(temporary), lis.Close())
	}
	return &socket{lis: lis, dir: d, file: file, name: name, done: make(chan struct{})}, nil
}

func notASocket(found fs.FileInfo, path string) error {
	return fmt.Errorf("%s exists and is not a socket (%v): move it elsewhere", path, found.Mode())
}

// removeSocket removes the socket of that name, if there is one.
func (d *directory) removeSocket(name string) error {
	found, err := d.lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case found.Mode().Type() != fs.ModeSocket:
		return notASocket(found, filepath.Join(d.path, name))
	}
	return d.remove(name)
}
