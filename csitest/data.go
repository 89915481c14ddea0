package csitest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
)

// Data that is written to volumes and read back.

// dataSize leaves room for what is written later.
func (w *walk) dataSize() int64 { return min(w.ruleRun.run.cfg.Size/8, 32*mib) }

// file is where a pod keeps its data: a file, or the device itself.
func (v *volume) file(target, name string) string {
	if v.isBlock() {
		return target
	}
	return filepath.Join(target, name)
}

// bytesOf are the same for the same seed.
func bytesOf(seed string, n int) []byte {
	sum := sha256.Sum256([]byte(seed))
	b := make([]byte, n)
	rand.NewChaCha8(sum).Read(b)
	return b
}

// writeData writes through pod a, durably, and returns the checksum.
func (w *walk) writeData(v *walked) string {
	f, err := w.ruleRun.run.openFile(v.file(v.targetPath("a"), "csicheck-data"), os.O_WRONLY|v.create(), 0o644)
	if err != nil {
		w.fail("a volume that can be written", "%v", err)
	}
	h := sha256.New()
	_, err = io.CopyN(io.MultiWriter(f, h), rand.NewChaCha8(sha256.Sum256([]byte(v.id))), w.dataSize())
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		w.fail("a volume that can be written", "%v", err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// create is the flag that makes a file; a device is there.
func (v *volume) create() int {
	if v.isBlock() {
		return 0
	}
	return os.O_CREATE
}

// checkData reads what writeData wrote through a pod.
func (w *walk) checkData(v *walked, pod string) {
	if !w.has(kernelView) {
		return
	}
	f, err := os.Open(v.file(v.targetPath(pod), "csicheck-data"))
	if err != nil {
		w.fail("the data that was written", "%v", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyN(h, f, w.dataSize()); err != nil {
		w.fail("the data that was written", "%v", err)
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != v.sum {
		w.fail("sha256 "+v.sum+", as it was written", "%s", sum)
	}
}

// refusesWrites tries to make a file where that must be refused.
func (c *ruleRun) refusesWrites(target string) {
	f, err := c.run.openFile(filepath.Join(target, "csicheck-written"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		err = f.Close()
	}
	if !errors.Is(err, syscall.EROFS) {
		c.fail("EROFS when a file is made below the target path", "%v", err)
	}
}

// A writer keeps writing through pod a, in blocks that can be checked later.
type writer struct {
	run    *run
	path   string
	offset int64 // where it begins
	span   int64 // how far it may go
	stop   context.CancelFunc
	wrote  chan int64 // the number of blocks so far, if there is a receiver
	done   chan error
	blocks int64 // valid once done
}

const (
	writerBlock = 64 << 10
	atLeast     = 16 // blocks that are waited for before and after
)

// startWriter returns a writer that is well under way, behind the first data.
func (w *walk) startWriter(v *walked) *writer {
	x := &writer{run: w.ruleRun.run, span: w.ruleRun.run.cfg.Size/2 - w.dataSize(), wrote: make(chan int64), done: make(chan error, 1)}
	x.path = v.file(v.targetPath("a"), "csicheck-log")
	if v.isBlock() {
		x.offset = w.dataSize()
	}
	ctx, stop := context.WithCancel(w.ctx)
	x.stop = stop
	go func() { x.done <- x.write(ctx, v.create()) }()
	x.more(w.ruleRun)
	return x
}

// more waits until some more blocks were written, or the room was full.
func (x *writer) more(c *ruleRun) {
	for range atLeast {
		select {
		case <-x.wrote:
		case err := <-x.done:
			x.done <- err
			if err != nil {
				c.fail("writes that continue", "%v", err)
			}
			return
		}
	}
}

func (x *writer) write(ctx context.Context, create int) error {
	f, err := x.run.openFile(x.path, os.O_WRONLY|os.O_SYNC|create, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	for ctx.Err() == nil && (x.blocks+1)*writerBlock <= x.span {
		if _, err := f.WriteAt(blockAt(x.blocks), x.offset+x.blocks*writerBlock); err != nil {
			return err
		}
		x.blocks++
		select {
		case x.wrote <- x.blocks:
		default:
		}
	}
	return nil
}

// end stops the writer, once more was written if that is asked for, and reads back
// all that it wrote.
func (x *writer) end(c *ruleRun, more bool) (written int64) {
	if more {
		x.more(c)
	}
	x.stop()
	if err := <-x.done; err != nil {
		c.fail("writes that continue", "%v", err)
	}
	f, err := os.Open(x.path)
	if err != nil {
		c.fail("the data written meanwhile", "%v", err)
	}
	defer f.Close()
	got := make([]byte, writerBlock)
	for i := range x.blocks {
		if _, err := f.ReadAt(got, x.offset+i*writerBlock); err != nil || !bytes.Equal(got, blockAt(i)) {
			c.fail("the data written meanwhile", "block %d of %s was lost or damaged (%v)", i, x.path, err)
		}
	}
	return x.blocks * writerBlock
}

func blockAt(i int64) []byte { return bytesOf(fmt.Sprintf("block %d", i), writerBlock) }
