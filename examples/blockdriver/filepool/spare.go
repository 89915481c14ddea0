package filepool

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// From a pool that is full to the last block no volume could be detached, which rewrites
// its metadata, and while it is attached it is not deleted either. So a file holds some
// room, and what has to be written gets it piece by piece. Volumes that grow concurrently
// may take what was freed: the pieces are for several attempts.
const (
	spareName  = markerName + ".spare"
	spareSize  = 4 << 20
	sparePiece = 256 << 10
)

// whenFull runs what has to be possible in a full pool, again and again while there are
// pieces to free for it.
func (p *pool) whenFull(do func() error) error {
	for {
		if err := do(); !isFull(err) || !p.giveSpare() {
			return err
		}
	}
}

// replaceWhenFull is replaceFile in whenFull.
func (p *pool) replaceWhenFull(dir *os.Root, name string, data []byte) (inDoubt bool, err error) {
	_ = p.whenFull(func() error {
		if inDoubt, err = p.replaceFile(dir, name, data); inDoubt {
			return nil // it is not for us to try again
		}
		return err
	})
	return inDoubt, err
}

// isFull: there is no room, or none for this user.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// giveSpare frees a piece. It is false when there is none.
func (p *pool) giveSpare() bool {
	f, err := p.root.OpenFile(spareName, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	return err == nil && info.Size() > 0 && f.Truncate(max(0, info.Size()-sparePiece)) == nil
}

// keepSpare creates the file, or what is missing of it. The pool's lock is held.
func (p *pool) keepSpare() error {
	info, err := p.root.Lstat(spareName)
	if err == nil && info.Size() >= spareSize {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := p.root.OpenFile(spareName, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := inheritOwner(p.root, spareName); err != nil {
		return err
	}
	return allocate(f, spareSize)
}
