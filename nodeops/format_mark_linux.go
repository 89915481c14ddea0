package nodeops

import (
	"fmt"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/mark"
)

// writeMark writes the mark in all its places, and reads it back from the disk.
func (d *device) writeMark(m mark.Mark) error {
	blocks := m.Blocks()
	if err := d.shared().WriteBlocks(blocks); err != nil {
		return fmt.Errorf("write the csikit mkfs mark to %s: %w", d.path, err)
	}
	return d.shared().CompareBlocks(blocks)
}

// clearMark overwrites the mark with zeros, if it is still the one that was found. All
// earlier writes to the device are durable then.
func (d *device) clearMark(s mark.Search) error {
	if err := d.shared().CompareBlocks(s.Ours); err != nil {
		return &fault{kind: csierr.Uncertain, err: err}
	}
	err := d.file.Sync() // what mkfs wrote
	if err == nil {
		err = d.shared().WriteBlocks(s.Zeros())
	}
	if err != nil {
		return faultf(csierr.Uncertain, "clear the csikit mkfs mark on %s: %w", d.path, err)
	}
	return nil
}
