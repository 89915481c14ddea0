package main

import (
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
)

// load keeps the machine busy until the returned function is called: loops that compute,
// one that writes and syncs a file, and one that touches memory and gives it back.
func load(dir string, loops int) (stop func()) {
	if loops == 0 {
		return func() {}
	}
	runtime.GOMAXPROCS(runtime.NumCPU() + loops + 2) // the loops leave a thread for this program
	done := make(chan struct{})
	var all sync.WaitGroup
	for range loops {
		all.Go(func() {
			for n := 0; ; n++ {
				if n%1_000_000 == 0 && over(done) {
					return
				}
			}
		})
	}
	all.Go(func() {
		f, err := os.Create(filepath.Join(dir, "written"))
		if err != nil {
			return
		}
		defer f.Close()
		block := make([]byte, 1<<20)
		for n := int64(0); !over(done); n++ {
			if _, err := f.WriteAt(block, n%64<<20); err != nil {
				return
			}
			_ = f.Sync()
		}
	})
	all.Go(func() {
		for !over(done) {
			memory, err := syscall.Mmap(-1, 0, 256<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
			if err != nil {
				return
			}
			for i := 0; i < len(memory) && !over(done); i += os.Getpagesize() {
				memory[i] = 1
			}
			_ = syscall.Munmap(memory)
		}
	})
	return func() { close(done); all.Wait() }
}

func over(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
