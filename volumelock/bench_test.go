package volumelock_test

import (
	"sync"
	"testing"

	"github.com/csikit/csikit/volumelock"
)

// set is the structure that most drivers use, the yardstick.
type set struct {
	mu   sync.Mutex
	held map[string]struct{}
}

func (s *set) tryAcquire(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.held[id]; ok {
		return false
	}
	s.held[id] = struct{}{}
	return true
}

func (s *set) release(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, id)
}

const volumeID = "pvc-4d9e1c52-7f0b-4c1e-9f0e-2f7c5f3a9b11"

func BenchmarkAcquireRelease(b *testing.B) {
	b.Run("set", func(b *testing.B) {
		s := set{held: map[string]struct{}{}}
		b.ReportAllocs()
		for b.Loop() {
			if !s.tryAcquire(volumeID) {
				b.Fatal("busy")
			}
			s.release(volumeID)
		}
	})
	op := volumelock.Op{RPC: "NodePublishVolume"}
	keys := []volumelock.Request{
		sh(volumelock.NodeVolume, volumeID),
		ex(volumelock.Target, "/var/lib/kubelet/pods/1f6/volumes/kubernetes.io~csi/"+volumeID+"/mount"),
		ex(volumelock.VolumeNode, volumeID),
	}
	for n, name := range []string{"none", "one", "two", "three"} {
		b.Run(name, func(b *testing.B) {
			var table volumelock.Table
			b.ReportAllocs()
			for b.Loop() {
				h, err := table.Acquire(op, keys[:n]...)
				if err != nil {
					b.Fatal(err)
				}
				h.Release()
			}
		})
	}
	b.Run("shared beside 200", func(b *testing.B) {
		var table volumelock.Table
		for range 200 {
			if _, err := table.Acquire(op, keys[0]); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportAllocs()
		for b.Loop() {
			h, err := table.Acquire(op, keys[0])
			if err != nil {
				b.Fatal(err)
			}
			h.Release()
		}
	})
	b.Run("busy", func(b *testing.B) {
		var table volumelock.Table
		if _, err := table.Acquire(op, keys[1]); err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := table.Acquire(op, keys[1]); err == nil {
				b.Fatal("not busy")
			}
		}
	})
}
