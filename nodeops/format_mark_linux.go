package nodeops

import (
	"bytes"
	"fmt"

	"github.com/csikit/csikit/csierr"
	"golang.org/x/sys/unix"
)

// writeMark writes the mark in all its places, and reads it back from the disk.
func (d *device) writeMark(m mark) error {
	places := markPlaces(d.size)
	blocks := make(map[int64][]byte, len(places))
	for _, place := range places {
		blocks[place] = m.encode(place)
	}
	if err := d.writeBlocks(blocks); err != nil {
		return fmt.Errorf("write the csikit mkfs mark to %s: %w", d.path, err)
	}
	return d.compareBlocks(blocks)
}

// clearMark overwrites the mark with zeros, if it is still the one that was found. All
// earlier writes to the device are durable then.
func (d *device) clearMark(s markSearch) error {
	if err := d.compareBlocks(s.ours); err != nil {
		return &fault{kind: csierr.Uncertain, err: err}
	}
	zeros := make(map[int64][]byte, len(s.ours))
	for place := range s.ours {
		zeros[place] = make([]byte, markSize)
	}
	err := d.file.Sync() // what mkfs wrote
	if err == nil {
		err = d.writeBlocks(zeros)
	}
	if err != nil {
		return faultf(csierr.Uncertain, "clear the csikit mkfs mark on %s: %w", d.path, err)
	}
	return nil
}

// writeBlocks writes the blocks and makes them durable.
func (d *device) writeBlocks(blocks map[int64][]byte) error {
	f, err := d.reopen(unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	for place, block := range blocks {
		if _, err := f.WriteAt(block, place); err != nil {
			return err
		}
	}
	return f.Sync()
}

func (d *device) compareBlocks(blocks map[int64][]byte) error {
	disk, err := d.direct()
	if err != nil {
		return err
	}
	defer disk.Close()
	for place, want := range blocks {
		have := make([]byte, len(want))
		if _, err := disk.ReadAt(have, place); err != nil {
			return fmt.Errorf("read back the csikit mkfs mark on %s: %w", d.path, err)
		}
		if !bytes.Equal(have, want) {
			return fmt.Errorf("%s returns other data at byte %d than was written: check that no other node writes to it", d.path, place)
		}
	}
	return nil
}
