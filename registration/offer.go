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
	// answerTimeout is how long whoever holds the socket has to answer.
	answerTimeout = 2 * time.Second
	// unlinkTimeout bounds the wait for another instance that is making its socket,
	// when ours is to be removed.
	unlinkTimeout = 500 * time.Millisecond
	// lockInterval is how often the lock of the directory is tried, which all drivers
	// of a node share, and each holds for less than a millisecond.
	lockInterval = 10 * time.Millisecond
	// offerAttempts is how often, one after the other, to try what meets another
	// instance on its way.
	offerAttempts = 5
)

// A socket is a registration socket that was put in place.
type socket struct {
	lis net.Listener
	// dir is kept open, and so is the socket: the kernel gives the number of neither
	// inode to another file meanwhile.
	dir  *directory
	file fs.FileInfo
	name string
	done chan struct{} // closed when lis accepts no more
}

// inPlace reports whether kubelet finds the socket at its path, and somebody
// behind it.
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
	_ = gs.Serve(s.lis) // if it fails, inPlace tells
}

// unlink removes the file of the socket, if the path still leads to it: it may be
// a successor's by now.
func (s *socket) unlink() error {
	var unlock func()
	var err error
	for deadline := time.Now().Add(unlinkTimeout); ; time.Sleep(lockInterval) {
		if unlock, err = s.dir.tryLock(); err == nil {
			break
		}
		if time.Now().After(deadline) {
			// One left behind is replaced by the next instance; one that is removed from
			// under its server is lost until that notices.
			return fmt.Errorf("registration socket left in place: %w", err)
		}
	}
	defer unlock()
	if now, err := s.dir.lstat(s.name); err != nil || !os.SameFile(now, s.file) {
		return nil
	}
	return s.dir.remove(s.name)
}

// close stops accepting. It is called after unlink, so that the number of the
// inode cannot be another file's before.
func (s *socket) close() {
	s.lis.Close()
	<-s.done
	s.dir.close()
}

// hold looks whether our socket is in place, and puts it there if it is not and
// nobody alive is in the way. With again it does so in any case. It reports
// whether there is nothing left to do.
func (r *Registrar) hold(ctx context.Context, again bool) bool {
	d, err := openDirectory(r.cfg.Dir)
	if err != nil {
		r.hinder(Blocked, fmt.Errorf("the registration directory, which is to be %s of the host: %w", r.cfg.KubeletDir, err))
		return false
	}
	ours := r.sock != nil && r.sock.inPlace(d)
	if ours && !again {
		d.close()
		r.inPlace()
		return true
	}
	s, err := r.offer(ctx, d, ours)
	if err != nil {
		d.close()
		state := Blocked
		if alive := (*aliveError)(nil); errors.As(err, &alive) {
			state = Standby
		}
		if ctx.Err() == nil {
			r.hinder(state, err)
		}
		return false
	}
	var remark error
	if r.sock != nil {
		switch {
		case !d.same(r.sock.dir):
			remark = errUnwatched
		case !ours:
			remark = errGone
		}
		r.sock.close()
	}
	r.sock = s
	r.offered(remark)
	// Only now: what kubelet says is about this offer, and may come at once.
	go s.serve(r.server)
	return true
}

// An aliveError is another process behind the socket.
type aliveError struct{ endpoint string }

func (e *aliveError) Error() string {
	return fmt.Sprintf("another process serves the socket, for a driver at %q: waiting for its end", e.endpoint)
}

var (
	errChanged = errors.New("the socket in the way is changing hands")
	errBusy    = errors.New("another instance has locked the registration directory")
)

// offer puts our socket in place, unless what is there is alive or no socket.
func (r *Registrar) offer(ctx context.Context, d *directory, ours bool) (s *socket, err error) {
	for range offerAttempts {
		var found fs.FileInfo
		if found, err = r.inTheWay(ctx, d, ours); err == nil {
			s, err = r.put(d, found)
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

// inTheWay returns the socket that may be replaced, or nil if there is nothing.
func (r *Registrar) inTheWay(ctx context.Context, d *directory, ours bool) (fs.FileInfo, error) {
	found, err := d.lstat(r.cfg.socketName())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case found.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("a file that is no socket (%v) is in the way at %s: move it elsewhere", found.Mode(), r.path)
	case ours && os.SameFile(found, r.sock.file):
		return found, nil
	}
	other, err := ask(ctx, d.at(r.cfg.socketName()), r.answerTimeout)
	switch {
	case err == nil:
		return nil, &aliveError{other.endpoint}
	case errors.Is(err, errDead):
		return found, nil
	case errors.Is(err, errChanged):
		return nil, err
	}
	return nil, fmt.Errorf("a socket is in the way, and it cannot be told who serves it: %w", err)
}

// put makes our socket in d, which does not answer yet. It replaces the file found,
// which is ours or dead, and no other.
func (r *Registrar) put(d *directory, found fs.FileInfo) (*socket, error) {
	// Without the lock two instances could both find one dead socket, and the slower
	// one replace the new socket of the faster one.
	unlock, err := d.tryLock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	// A socket that was dead a moment ago still is, unless it is another one: of
	// another inode, or of one whose number was free again meanwhile.
	name := r.cfg.socketName()
	if now, err := d.lstat(name); found != nil && (err != nil || !os.SameFile(now, found) || !now.ModTime().Equal(found.ModTime())) {
		return nil, errChanged
	}

	// kubelet takes no notice of a name that begins with a dot. Under it the socket
	// gets its mode and starts to listen, and then appears by one rename, which is
	// one event to kubelet. (kubelet looks at the file before the name, and logs that
	// it cannot if it comes too late. That is all.)
	temporary := "." + name
	if err := d.removeSocket(temporary); err != nil { // of one who was killed here
		return nil, err
	}
	lis, err := d.listen(temporary)
	if err != nil {
		return nil, fmt.Errorf("make the registration socket: %w", err)
	}
	lis.SetUnlinkOnClose(false) // it would unlink by name, whosever file that is by then
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

// removeSocket removes the socket of that name, if there is one.
func (d *directory) removeSocket(name string) error {
	found, err := d.lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case found.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("a file that is no socket (%v) is in the way at %s: move it elsewhere", found.Mode(), filepath.Join(d.path, name))
	}
	return d.remove(name)
}
