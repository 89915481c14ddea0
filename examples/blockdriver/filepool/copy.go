package filepool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/csikit/csikit/csierr"
)

// A copy is a new object's image that is being created from another image. Before the
// image, <id>.copying is written: what a kill leaves is thereby known to be a part of a
// copy, and is resumed. The mark is removed when the metadata is there.
//
// Where the pool's file system shares blocks (btrfs, xfs, FICLONE), the copy is one
// atomic clone. Elsewhere data is copied piece by piece, and holes stay holes; that
// takes time, during which no process may write to the source.
type imageCopy[T object] struct {
	*store[T]
	id      string
	size    int64 // of the new image; not less than the source's
	mark    copyMark
	src     *os.File
	dst     *os.File
	atomic  bool   // by FICLONE
	holding bool   // the source holds data
	xfsOn   string // as imageSource has it
}

// copyMark is the content of <id>.copying.
type copyMark struct {
	Version    int       `json:"version"`
	Source     string    `json:"source"` // such as "volumes/vol-..."
	Generation int64     `json:"generation,omitempty"`
	Time       time.Time `json:"cut_at"`         // the point in time of the content
	Done       int64     `json:"done,omitempty"` // bytes that are copied and on the disk
}

const (
	extCopying = ".copying"

	copyPiece      = 16 << 20  // at the end of each a copy can be stopped
	copyCheckpoint = 256 << 20 // from each on an interrupted copy is resumed
)

// imageSource is what is copied.
type imageSource struct {
	id         string
	dir        *os.Root
	dirName    string
	least      int64  // bytes that the image has to have
	generation int64  // differs when a node may have written to it
	xfsOn      string // the node that may have it mounted, as xfs
}

// reflinks reports whether files of the pool can share blocks. In a pool that is full or
// read-only that cannot be tried out, and it is asked again.
func (p *pool) reflinks() bool {
	p.reflinkMu.Lock()
	defer p.reflinkMu.Unlock()
	if !p.reflinkKnown {
		var err error
		p.reflink, err = p.canReflink()
		p.reflinkKnown = !isFull(err) && !unwritable(err)
	}
	return p.reflink
}

// beginCopy opens both images and leaves the mark. The caller holds the lock of the
// new object, and keeps the source from being changed.
func (s *store[T]) beginCopy(id string, from imageSource) (_ *imageCopy[T], err error) {
	c := &imageCopy[T]{store: s, id: id, atomic: s.pool.reflinks(), xfsOn: from.xfsOn}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.size, err = s.pool.checkImage(from.dir, from.dirName, from.id, from.least); err != nil {
		return nil, err
	}
	if c.src, err = from.dir.Open(from.id + extImage); err != nil {
		return nil, err
	}
	if c.holding, err = holdsData(c.src); err != nil {
		return nil, err
	}
	wanted := copyMark{Version: formatVersion, Source: from.dirName + "/" + from.id, Generation: from.generation}
	c.mark, err = s.readCopyMark(id)
	same := err == nil && c.mark.Source == wanted.Source && c.mark.Generation == wanted.Generation
	if same && !c.atomic {
		// Without its image the mark is what dropCopy has left: none of it is copied.
		if c.dst, err = s.dir.OpenFile(id+extImage, os.O_RDWR, 0); !errors.Is(err, fs.ErrNotExist) {
			return c, err
		}
	}
	// Otherwise from the beginning. A mark that cannot be read is one all the same.
	if err := s.dropCopy(id); err != nil {
		return nil, err
	}
	if err := s.removeUncommitted(id + extImage); err != nil {
		return nil, err
	}
	wanted.Time = time.Now().UTC()
	c.mark = wanted
	s.setBegun(id, true)
	if err := c.saveMark(); err != nil {
		return nil, err
	}
	c.dst, err = s.openImage(id + extImage)
	return c, err
}

// clone creates the whole image atomically: of concurrent writes to the source it has
// those before the point in time, and none after it. csierr.Busy: the volume was growing at
// that time.
func (c *imageCopy[T]) clone() error {
	err := c.pool.do("clone image", func() error {
		c.mark.Time = time.Now().UTC()
		return cloneFile(c.dst, c.src)
	})
	if err == nil && c.xfsOn != "" {
		err = checkGrown(c.dst, c.xfsOn)
	}
	return err
}

// fill copies what is data. room is asked before each piece: others write too.
func (c *imageCopy[T]) fill(ctx context.Context, room func() error) error {
	if err := c.pool.do("truncate image", func() error { return c.dst.Truncate(c.size) }); err != nil {
		return err
	}
	asked := c.mark.Done
	for at, saved := c.mark.Done, c.mark.Done; ; {
		start, end, err := nextData(c.src, at)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		end = min(end, start+copyPiece)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("the driver stops: %w", err)
		}
		if end-asked >= copyPiece { // small ones go together
			if err := room(); err != nil {
				return err
			}
			asked = end
		}
		if err := c.pool.do("copy", func() error { return copyRange(c.dst, c.src, start, end-start) }); err != nil {
			return err
		}
		if at = end; at-saved < copyCheckpoint {
			continue
		}
		if err := c.pool.do("sync image", c.dst.Sync); err != nil {
			return err
		}
		c.mark.Done, saved = at, at
		if err := c.saveMark(); err != nil {
			return err
		}
	}
}

func copyRange(dst, src *os.File, at, n int64) error {
	for _, f := range []*os.File{dst, src} {
		if _, err := f.Seek(at, io.SeekStart); err != nil {
			return err
		}
	}
	_, err := io.CopyN(dst, src, n) // copy_file_range, where the system has it
	return err
}

// finish makes the image size bytes large and durable.
func (c *imageCopy[T]) finish(size int64) error {
	err := c.pool.do("truncate image", func() error { return c.dst.Truncate(size) })
	if err == nil {
		err = c.pool.do("sync image", c.dst.Sync)
	}
	if err == nil {
		err = c.pool.sync(c.dir)
	}
	return err
}

// done removes the mark, once the metadata is there.
func (c *imageCopy[T]) done() {
	if err := c.pool.remove(c.dir, c.id+extCopying); err != nil {
		c.log.Warn("the mark of a finished copy remains until the next start", "id", c.id, "error", err)
	}
	c.setBegun(c.id, false)
}

func (c *imageCopy[T]) close() {
	for _, f := range []*os.File{c.src, c.dst} {
		if f != nil {
			f.Close()
		}
	}
}

func (c *imageCopy[T]) saveMark() error {
	data, err := encode(c.mark)
	if err == nil {
		_, err = c.pool.replaceFile(c.dir, c.id+extCopying, data)
	}
	return err
}

func (s *store[T]) readCopyMark(id string) (m copyMark, err error) {
	data, err := s.dir.ReadFile(id + extCopying)
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err == nil && m.Version != formatVersion {
		err = fmt.Errorf("%w: the mark of a copy has version %d", errDamaged, m.Version)
	}
	return m, err
}

// dropCopy removes a part of a copy, if there is one.
func (s *store[T]) dropCopy(id string) error {
	if _, err := s.dir.Lstat(id + extCopying); errors.Is(err, fs.ErrNotExist) {
		s.settle(id)
		return nil
	} else if err != nil {
		return err
	}
	if err := s.pool.remove(s.dir, id+extImage); err != nil {
		return err
	}
	if err := s.pool.sync(s.dir); err != nil {
		return err
	}
	if err := s.pool.remove(s.dir, id+extCopying); err != nil {
		return err
	}
	s.setBegun(id, false)
	return nil
}

// abandon drops a copy that failed with err.
func (s *store[T]) abandon(id string, err error) error { return undone(err, s.dropCopy(id)) }

// notSaved is for metadata that could not be written. Otherwise an orphaned image
// would stay in the pool that is full.
func (c *imageCopy[T]) notSaved(inDoubt bool, err error) error {
	if kind := withSpaceKind(err); !inDoubt && errors.Is(kind, csierr.NoSpace) {
		return c.abandon(c.id, kind)
	}
	return err
}

// setBegun remembers that a part of the object is there.
func (s *store[T]) setBegun(id string, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if is {
		s.begun[keyOf(id)] = id
	} else if s.begun[keyOf(id)] == id {
		delete(s.begun, keyOf(id))
	}
}

// settle ends what setBegun began, unless a part was left: a retry resumes that.
func (s *store[T]) settle(id string) {
	parts := []string{extCopying, extMaking}
	if !s.known(id) {
		parts = append(parts, extImage)
	}
	for _, ext := range parts {
		if _, err := s.dir.Lstat(id + ext); !errors.Is(err, fs.ErrNotExist) {
			return
		}
	}
	s.setBegun(id, false)
}

// claimed reports whether the object is there, or a part of it is.
func (s *store[T]) claimed(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.index[id]
	return known || s.begun[keyOf(id)] == id
}

// pins keep objects from being attached and from being deleted while they are
// copied. They are taken under the object's lock.
type pins map[string]int

func (b *fileBackend) pin(id string) (unpin func()) {
	b.pinsMu.Lock()
	defer b.pinsMu.Unlock()
	b.pins[id]++
	return func() {
		b.pinsMu.Lock()
		defer b.pinsMu.Unlock()
		if b.pins[id]--; b.pins[id] == 0 {
			delete(b.pins, id)
		}
	}
}

func (b *fileBackend) checkNotPinned(id string) error {
	b.pinsMu.Lock()
	defer b.pinsMu.Unlock()
	if b.pins[id] > 0 {
		return fmt.Errorf("%w: it is being copied; try again when that has ended", csierr.Busy)
	}
	return nil
}
