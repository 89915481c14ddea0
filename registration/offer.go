package registration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"
)

const (
	// answerTimeout is how long whoever holds the socket has to answer.
	answerTimeout = 2 * time.Second
	// unlinkTimeout bounds the wait for another instance that is making its socket,
	// when ours is to be removed.
	unlinkTimeout = 500 * time.Millisecond
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
	now, err := os.Lstat(d.at(s.name))
	return err == nil && os.SameFile(now, s.file)
}

// unlink removes the file of the socket, if the path still leads to it: it may be
// a successor's by now.
func (s *socket) unlink() error {
	var unlock func()
	var err error
	for deadline := time.Now().Add(unlinkTimeout); ; time.Sleep(10 * time.Millisecond) {
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
	path := s.dir.at(s.name)
	if now, err := os.Lstat(path); err != nil || !os.SameFile(now, s.file) {
		return nil
	}
	return os.Remove(path)
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
			remark = errors.New("the registration directory was deleted and made anew: kubelet watches the deleted one, and has to be restarted")
		case !ours:
			remark = errors.New("the registration socket was gone, and kubelet has taken the driver out: it is made again")
		}
		r.sock.close()
	}
	r.sock = s
	r.offered(remark)
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
	for range 3 { // the file may change hands while we look at it
		var found fs.FileInfo
		if found, err = r.inTheWay(ctx, d, ours); err == nil {
			s, err = r.put(d, found)
		}
		if !errors.Is(err, errChanged) {
			break
		}
	}
	return s, err
}

// inTheWay returns the socket that may be replaced, or nil if there is nothing.
func (r *Registrar) inTheWay(ctx context.Context, d *directory, ours bool) (fs.FileInfo, error) {
	path := d.at(r.cfg.socketName())
	found, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case found.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("a file that is no socket (%v) is in the way: move it elsewhere", found.Mode())
	case ours && os.SameFile(found, r.sock.file):
		return found, nil
	}
	other, err := ask(ctx, path, r.answerTimeout)
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

// put makes our socket in d. It replaces the file found, which is ours or dead,
// and no other.
func (r *Registrar) put(d *directory, found fs.FileInfo) (*socket, error) {
	// Without the lock two instances could both find one dead socket, and the slower
	// one replace the new socket of the faster one.
	unlock, err := d.tryLock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	// A socket that was dead a moment ago still is, unless it is another one.
	name := r.cfg.socketName()
	if now, err := os.Lstat(d.at(name)); found != nil && (err != nil || !os.SameFile(now, found)) {
		return nil, errChanged
	}

	// kubelet takes no notice of a name that begins with a dot. Under it the socket
	// gets its mode and starts to listen, and then appears by one rename, which is
	// one event to kubelet. (kubelet looks at the file before the name, and logs that
	// it cannot if it comes too late. That is all.)
	temporary := "." + name
	if err := removeSocket(d.at(temporary)); err != nil { // of one who was killed here
		return nil, err
	}
	lis, err := d.listen(temporary)
	if err != nil {
		return nil, fmt.Errorf("make the registration socket: %w", err)
	}
	lis.SetUnlinkOnClose(false) // it would unlink by name, whosever file that is by then
	file, err := os.Lstat(d.at(temporary))
	if err == nil {
		if found == nil {
			err = d.renameNew(temporary, name)
		} else {
			err = os.Rename(d.at(temporary), d.at(name))
		}
	}
	if err != nil {
		return nil, errors.Join(err, removeSocket(d.at(temporary)), lis.Close())
	}
	s := &socket{lis: lis, dir: d, file: file, name: name, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		_ = r.server.Serve(lis) // when lis is closed; or it fails, which inPlace tells
	}()
	return s, nil
}

// removeSocket removes the socket at path, if there is one.
func removeSocket(path string) error {
	found, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case found.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("a file that is no socket (%v) is in the way at .%s: move it elsewhere", found.Mode(), found.Name()[1:])
	}
	return os.Remove(path)
}
