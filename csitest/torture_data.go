package csitest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// A volume under torture has some slots: files, or places on a device. Each write fills
// one with what no other write has, and is on the disk before it counts.
const (
	slots    = 12
	slotSize = 64 << 10
)

type (
	sum     [sha256.Size]byte // of a slot; all zero: it is blank
	content [slots]sum
)

// A write is one that was made during a snapshot or a clone; at numbers the writes to all
// volumes of a group.
type write struct {
	at, slot int
	sum      sum
}

// A past is what a volume may have held at a point in time: what it held before, and the
// first of the writes that followed. Reading the volume settles how many.
type past struct {
	base   content
	writes []write
	any    bool // a new device may hold anything
	point  *pointInTime
}

// A pointInTime is when a snapshot was taken, as far as is known, between the begins (2n)
// and the ends (2n+1) of the writes. The members of a group share it.
type pointInTime struct{ from, to int }

// settle finds out which of the contents that may be there is there.
func (p *past) settle(got content) (ok bool) {
	if p.any || p.find(got, false) || p.find(got, true) {
		*p = past{base: got}
		return true
	}
	return false
}

// find searches the number of writes after which got was the content; torn allows for one
// more that is incomplete.
func (p *past) find(got content, torn bool) bool {
	at := p.base
	for k := 0; ; k++ {
		match := true
		for i := range at {
			match = match && (at[i] == got[i] || torn && k < len(p.writes) && p.writes[k].slot == i)
		}
		if match && p.narrow(k) {
			return true
		}
		if k == len(p.writes) {
			return false
		}
		at[p.writes[k].slot] = p.writes[k].sum
	}
}

// narrow notes that the first k writes were there, the next perhaps by half; it fails if
// no point in time fits.
func (p *past) narrow(k int) bool {
	if p.point == nil {
		return true
	}
	m := *p.point
	if k > 0 {
		m.from = max(m.from, 2*p.writes[k-1].at)
	}
	if k < len(p.writes) {
		m.to = min(m.to, 2*p.writes[k].at+1)
	}
	if m.from > m.to {
		return false
	}
	*p.point = m
	return true
}

func (p *past) settled() bool { return len(p.writes) == 0 && !p.any }

// differs says which slots are not what they may be.
func (p *past) differs(got content) string {
	may := func(i int, s sum) bool {
		if p.base[i] == s {
			return true
		}
		for _, w := range p.writes {
			if w.slot == i && w.sum == s {
				return true
			}
		}
		return false
	}
	text := ""
	for i, s := range got {
		switch {
		case may(i, s):
		case s == sum{}:
			text += fmt.Sprintf(" slot %d is blank;", i)
		default:
			text += fmt.Sprintf(" slot %d holds something else;", i)
		}
	}
	if text == "" {
		text = " each slot is as it was at some point in time, but there is no single point at which all were;"
	}
	return text
}

func sumOf(data []byte) sum {
	for _, b := range data {
		if b != 0 {
			return sha256.Sum256(data)
		}
	}
	return sum{}
}

// slot is where a slot of the volume is: a path, and an offset.
func (v *subject) slot(target string, i int) (path string, offset int64) {
	if v.isBlock() {
		return target, int64(i) * (v.c.run.cfg.Size / slots &^ 4095)
	}
	return filepath.Join(target, fmt.Sprintf("csicheck-slot-%02d", i)), 0
}

func (v *subject) writeSlot(target string, i int, data []byte) error {
	path, offset := v.slot(target, i)
	f, err := v.c.run.openFile(path, os.O_WRONLY|v.create(), 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, offset)
	return errors.Join(err, f.Sync(), f.Close())
}

func (v *subject) readSlots(target string) (got content, err error) {
	for i := range got {
		path, offset := v.slot(target, i)
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return got, err
		}
		data := make([]byte, slotSize)
		_, err = f.ReadAt(data, offset)
		_ = f.Close() // it was only read
		if err != nil && !errors.Is(err, io.EOF) {
			return got, err
		}
		got[i] = sumOf(data)
	}
	return got, nil
}

// soon does what the kernel may block, and fails if that takes too long: the file system
// may have been left frozen, or its device taken away.
func (c *ruleRun) soon(what string, do func() error) {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		if err != nil {
			c.fail(what, "%v", err)
		}
	case <-time.After(callTimeout):
		c.fail(what+" within "+callTimeout.String(), "it hangs")
	}
}
