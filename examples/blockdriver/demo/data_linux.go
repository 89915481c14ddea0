package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const dataSize = 32 << 20

// dataFile is where a pod keeps its data: a file, or the device itself.
func dataFile(v *volume, target string) string {
	if v.block() {
		return target
	}
	return filepath.Join(target, "data")
}

// writeData writes random bytes through the pod's path, makes them durable, and
// remembers their checksum.
func writeData(v *volume, target string) error {
	flags := os.O_WRONLY
	if !v.block() {
		flags |= os.O_CREATE | os.O_EXCL
	}
	f, err := os.OpenFile(dataFile(v, target), flags, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	var seed [32]byte
	copy(seed[:], v.pv)
	if _, err := io.CopyN(io.MultiWriter(f, h), rand.NewChaCha8(seed), dataSize); err != nil {
		return err
	}
	v.sum = hex.EncodeToString(h.Sum(nil))
	return f.Sync()
}

// checkData reads the bytes back through a pod's path.
func checkData(v *volume, target string) error {
	f, err := os.Open(dataFile(v, target))
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyN(h, f, dataSize); err != nil {
		return fmt.Errorf("read back %s: %w", f.Name(), err)
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != v.sum {
		return fmt.Errorf("%s: checksum is %s, was %s when written", f.Name(), sum, v.sum)
	}
	return nil
}

// checkReadOnly tries to write through a target that must refuse it.
func checkReadOnly(target string) error {
	err := os.WriteFile(filepath.Join(target, "must-not-appear"), nil, 0o600)
	if errors.Is(err, unix.EROFS) {
		return nil
	}
	if err == nil {
		return fmt.Errorf("a write to the read-only %s succeeded", target)
	}
	return fmt.Errorf("a write to the read-only %s failed in another way than by EROFS: %w", target, err)
}

// writer keeps writing through a pod's path until it is stopped, in blocks that
// can be checked later.
type writer struct {
	path   string
	offset int64 // where it begins
	span   int64 // how far it may go
	stop   context.CancelFunc
	wrote  chan int64 // the number of blocks so far, for whoever listens
	done   chan error
	blocks int64 // valid once done
}

const (
	writerBlock = 64 << 10
	atLeast     = 16 // blocks that are waited for before and after an expansion
)

// startWriter writes behind the first data, at most span bytes, and returns once
// it is well under way.
func startWriter(ctx context.Context, v *volume, target string, span int64) (*writer, error) {
	w := &writer{path: filepath.Join(target, "log"), span: span, wrote: make(chan int64), done: make(chan error, 1)}
	if v.block() {
		w.path, w.offset = target, dataSize
	}
	ctx, w.stop = context.WithCancel(ctx)
	go func() { w.done <- w.write(ctx, v.block()) }()
	return w, w.more()
}

// more waits until some more blocks were written.
func (w *writer) more() error {
	for range atLeast {
		select {
		case <-w.wrote:
		case err := <-w.done:
			w.done <- err
			if err == nil {
				err = errors.New("it was full too early")
			}
			return fmt.Errorf("write to %s: %w", w.path, err)
		}
	}
	return nil
}

func (w *writer) write(ctx context.Context, block bool) error {
	flags := os.O_WRONLY | unix.O_DSYNC
	if !block {
		flags |= os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(w.path, flags, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	for ctx.Err() == nil && (w.blocks+1)*writerBlock <= w.span {
		if _, err := f.WriteAt(blockAt(w.blocks), w.offset+w.blocks*writerBlock); err != nil {
			return err
		}
		w.blocks++
		select {
		case w.wrote <- w.blocks:
		default:
		}
	}
	return nil
}

// end stops the writer and reads back all that it wrote.
func (w *writer) end() (written int64, err error) {
	w.stop()
	if err := <-w.done; err != nil {
		return 0, fmt.Errorf("write during expansion: %w", err)
	}
	f, err := os.Open(w.path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	got := make([]byte, writerBlock)
	for i := range w.blocks {
		if _, err := f.ReadAt(got, w.offset+i*writerBlock); err != nil {
			return 0, err
		}
		if string(got) != string(blockAt(i)) {
			return 0, fmt.Errorf("%s: block %d was lost or damaged", w.path, i)
		}
	}
	return w.blocks * writerBlock, nil
}

func blockAt(i int64) []byte {
	b := make([]byte, writerBlock)
	var seed [32]byte
	copy(seed[:], fmt.Sprintf("block %d", i))
	rand.NewChaCha8(seed).Read(b)
	return b
}
