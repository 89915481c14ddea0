package filepool

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"

	"github.com/csikit/csikit/csierr"
)

// compareBlock is the unit in which snapshots are compared where they may differ.
const compareBlock = 64 << 10

// Blocks reads what is in the snapshot, or what differs from base: what the file
// system says both share is not read, the rest is compared. The snapshots may be
// deleted during the comparison.
func (b *fileBackend) Blocks(ctx context.Context, baseID, id string, from int64, each func(at, size int64) error) error {
	const op = "list the blocks of snapshot"
	snap, f, err := b.openSnapshot(id)
	if err != nil {
		return csierr.Errorf(op, id, "%w", err)
	}
	defer f.Close()
	m := &merger{each: each}
	if baseID == "" {
		err = allocatedBlocks(ctx, f, from, snap.SizeBytes, m)
	} else {
		var base *os.File
		if _, base, err = b.openSnapshot(baseID); err != nil {
			return csierr.Errorf(op, baseID, "%w", err)
		}
		defer base.Close()
		err = changedBlocks(ctx, base, f, from, snap.SizeBytes, m)
	}
	if err == nil {
		err = m.flush()
	}
	if m.failed != nil {
		return m.failed // the stream's, as it is
	}
	if err != nil {
		return csierr.Errorf(op, id, "%w", err)
	}
	return nil
}

func (b *fileBackend) openSnapshot(id string) (snapshot, *os.File, error) {
	s, err := b.snaps.get(id)
	if err != nil {
		return s, nil, err
	}
	if err := b.checkSnapshotImage(s); err != nil {
		return s, nil, err
	}
	f, err := b.snapshots.Open(id + extImage)
	return s, f, err
}

func (m *filePools) Blocks(ctx context.Context, baseID, id string, from int64, each func(at, size int64) error) error {
	b, err := m.snapshot(ctx, "list the blocks of snapshot", id)
	if err != nil {
		return err
	}
	return b.Blocks(ctx, baseID, id, from, each)
}

// merger joins ranges that touch.
type merger struct {
	each       func(at, size int64) error
	start, end int64
	failed     error // of each
}

func (m *merger) add(start, end int64) error {
	if start == m.end && m.end > m.start {
		m.end = end
		return nil
	}
	if err := m.flush(); err != nil {
		return err
	}
	m.start, m.end = start, end
	return nil
}

func (m *merger) flush() error {
	if m.end > m.start {
		m.failed = m.each(m.start, m.end-m.start)
	}
	m.start, m.end = 0, 0
	return m.failed
}

func allocatedBlocks(ctx context.Context, f *os.File, from, size int64, m *merger) error {
	for at := from; at < size; {
		start, end, err := nextData(f, at)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err == nil && start < size {
			err = m.add(start, min(end, size))
		}
		if err != nil {
			return err
		}
		at = end
	}
	return nil
}

func changedBlocks(ctx context.Context, base, target *os.File, from, size int64, m *merger) error {
	shared := newSharing(base, target)
	one, other := make([]byte, compareBlock), make([]byte, compareBlock)
	for at := from; at < size; {
		start, err := nextOfBoth(base, target, at, size)
		if err != nil || start >= size {
			return err
		}
		if at = start; shared.until(at) > at {
			at = shared.until(at)
			continue
		}
		end := min(at/compareBlock*compareBlock+compareBlock, size)
		n := end - at
		if err := errors.Join(readFull(base, one[:n], at), readFull(target, other[:n], at), ctx.Err()); err != nil {
			return err
		}
		if !bytes.Equal(one[:n], other[:n]) {
			if err := m.add(at, end); err != nil {
				return err
			}
		}
		at = end
	}
	return nil
}

// nextOfBoth returns where at least one of the files has data, from at on.
func nextOfBoth(one, other *os.File, at, size int64) (int64, error) {
	next := size
	for _, f := range []*os.File{one, other} {
		start, _, err := nextData(f, at)
		if errors.Is(err, io.EOF) {
			continue
		}
		if err != nil {
			return 0, err
		}
		next = min(next, start)
	}
	return next, nil
}

// readFull reads what is behind the end of the file as zeros.
func readFull(f *os.File, p []byte, at int64) error {
	n, err := f.ReadAt(p, at)
	if errors.Is(err, io.EOF) {
		clear(p[n:])
		return nil
	}
	return err
}
