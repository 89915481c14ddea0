package filepool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// unwritable: the file system was made read-only, by errors or by an administrator. A driver
// that starts then can create nothing, but still list, check and unmount what is there.
func unwritable(err error) bool { return errors.Is(err, syscall.EROFS) }

// openToLock opens a file for its lock: for writing, because an exclusive lock over NFS
// demands it, or where that cannot be for reading.
func openToLock(dir *os.Root, name string, flags int) (*os.File, error) {
	f, err := dir.OpenFile(name, os.O_RDWR|flags, 0o600)
	if unwritable(err) {
		return dir.Open(name)
	}
	return f, err
}

// do runs one step that changes the directory.
func (p *pool) do(name string, step func() error) error {
	if p.step != nil {
		if err := p.step(name); err != nil {
			return err
		}
	}
	return step()
}

// replaceFile makes data the content of dir/name: after a crash at any point
// the file is the old or the new one, and after success it is the new one. Two
// writers of one file must not run concurrently. An error with inDoubt=false leaves
// the old file; with inDoubt=true either may be there, now and after a crash.
func (p *pool) replaceFile(dir *os.Root, name string, data []byte) (inDoubt bool, err error) {
	tmp := name + extTemp
	err = p.do("write temp", func() error { return writeSynced(dir, tmp, data) })
	if err != nil {
		undo := p.remove(dir, tmp)
		return undo != nil, errors.Join(err, undo)
	}
	// From here on the answer is not known: a rename on a network file system
	// can fail and have happened, and without the fsync a power failure may still
	// undo it.
	if err := p.do("rename", func() error { return dir.Rename(tmp, name) }); err != nil {
		return true, err
	}
	if err := p.sync(dir); err != nil {
		return true, err
	}
	return false, nil
}

// writeSynced writes a file and waits until its content is on the disk.
func writeSynced(dir *os.Root, name string, data []byte) error {
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = inheritOwner(dir, name)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// remove unlinks dir/name if it is there.
func (p *pool) remove(dir *os.Root, name string) error {
	return p.do("remove", func() error {
		if err := dir.Remove(name); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

// undone returns err, whose code may promise that nothing was done; it may not when what
// was created could not be removed again.
func undone(err, undo error) error {
	if undo != nil {
		return fmt.Errorf("undo: %s; after: %s", undo.Error(), err.Error())
	}
	return err
}

// sync makes changes of the names in dir durable.
func (p *pool) sync(dir *os.Root) error {
	return p.do("sync dir", func() error { return syncDir(dir) })
}

func syncDir(dir *os.Root) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func readNames(dir *os.Root) ([]string, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	return names, errors.Join(err, f.Close())
}
