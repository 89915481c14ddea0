package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/volumelock"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// kubernetes-csi/csi-driver-nfs#200, ceph/ceph-csi#2123: pods that share a volume were
// refused for each other. Here 200 of them come concurrently, as a CO that is not
// kubelet may send them, and go concurrently, as kubelet does send them. Each call is
// held inside the driver until every other one has arrived there or was refused, so
// that how many are refused is the lock's doing and not a matter of time.
func TestPodsOfOneVolume(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs")
	const pods = 200
	for _, tt := range []struct {
		name    string
		lock    locking
		refused int // of each wave
	}{
		{"volumelock", lockVolumes, 0},
		{"a lock per volume", perVolume, pods - 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newCrashVolume(t, "ext4", 64<<20)
			var now atomic.Pointer[meeting]
			serveLocked(t, w, meetingBehind(tt.lock, &now))
			t.Cleanup(w.close)
			must(t, w.create())
			must(t, w.attach())
			must(t, w.stage())
			must(t, os.WriteFile(filepath.Join(w.staging(), "data"), []byte("shared"), 0o600))

			// wave sends one call for each pod, all at the same time.
			wave := func(what string, call func(pod string) error) {
				t.Helper()
				m := &meeting{seats: pods, seen: map[string]bool{}, complete: make(chan struct{})}
				now.Store(m)
				defer now.Store(nil)
				var refused atomic.Int64
				var calls sync.WaitGroup
				for i := range pods {
					pod := fmt.Sprint(i)
					calls.Go(func() {
						err := call(pod)
						m.arrive(w.target(pod)) // if it was refused; otherwise it has been inside
						if status.Code(err) == codes.Aborted {
							refused.Add(1)
						} else if err != nil {
							t.Errorf("%s of pod %s: %v", what, pod, err)
						}
					})
				}
				calls.Wait()
				if n := int(refused.Load()); n != tt.refused {
					t.Errorf("%s: %d of %d calls are ABORTED, want %d", what, n, pods, tt.refused)
				}
				if n := int(m.inside.Load()); n != pods-tt.refused {
					t.Errorf("%s: %d calls were in the driver concurrently, want %d", what, n, pods-tt.refused)
				}
			}

			wave("NodePublishVolume", func(pod string) error { return w.publish(pod, false) })
			if n := len(publishedPods(t, w)); n != pods-tt.refused {
				t.Errorf("%d pods have the volume, want %d", n, pods-tt.refused)
			}
			wave("NodeUnpublishVolume", w.unpublish)
			if tt.refused == 0 && len(publishedPods(t, w)) > 0 {
				t.Errorf("after all have gone these pods have the volume: %v", publishedPods(t, w))
			}
			for i := range pods { // those that were refused
				must(t, w.unpublish(fmt.Sprint(i)))
			}
			must(t, w.unstage())
			must(t, w.detach())
			must(t, w.delete())
			w.checkNothingLeft()
		})
	}
}

// publishedPods are those that read what is in the volume.
func publishedPods(t *testing.T, w *crashVolume) (pods []string) {
	t.Helper()
	for _, m := range w.mounts() {
		if !strings.HasPrefix(m, w.target("")) {
			continue
		}
		if data, err := os.ReadFile(filepath.Join(m, "data")); err != nil || string(data) != "shared" {
			t.Errorf("%s holds %q, %v", m, data, err)
		}
		pods = append(pods, filepath.Base(m))
	}
	return pods
}

// perVolume is the lock that many drivers have: one key, the volume.
func perVolume(*volumelock.Table, ...volumelock.Option) csiserver.Interceptor {
	var busy sync.Map
	return csiserver.Interceptor{Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		r, ok := req.(interface{ GetVolumeId() string })
		if !ok {
			return handler(ctx, req)
		}
		if _, taken := busy.LoadOrStore(r.GetVolumeId(), nil); taken {
			return nil, status.Errorf(codes.Aborted, "an operation on volume %s is pending", r.GetVolumeId())
		}
		defer busy.Delete(r.GetVolumeId())
		return handler(ctx, req)
	}}
}

// meeting ends when for each target a call is in the driver or was refused.
type meeting struct {
	seats    int
	inside   atomic.Int64
	complete chan struct{}

	mu   sync.Mutex
	seen map[string]bool
}

func (m *meeting) arrive(target string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seen[target] {
		return
	}
	m.seen[target] = true
	if len(m.seen) == m.seats {
		close(m.complete)
	}
}

// meetingBehind holds the calls of pods that have passed the lock, while there is a
// meeting.
func meetingBehind(lock locking, now *atomic.Pointer[meeting]) locking {
	return func(locks *volumelock.Table, opts ...volumelock.Option) csiserver.Interceptor {
		behind := lock(locks, opts...).Unary
		return csiserver.Interceptor{Unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			return behind(ctx, req, info, func(ctx context.Context, req any) (any, error) {
				r, pod := req.(interface{ GetTargetPath() string })
				if m := now.Load(); m != nil && pod {
					m.inside.Add(1)
					m.arrive(r.GetTargetPath())
					select {
					case <-m.complete:
					case <-ctx.Done():
						return nil, status.FromContextError(ctx.Err()).Err()
					}
				}
				return handler(ctx, req)
			})
		}}
	}
}

// serveLocked is startInProcess with another lock.
func serveLocked(t *testing.T, w *crashVolume, lock locking) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		args := []string{"-endpoint", w.endpoint(), "-pool", filepath.Join(w.dir, "pool"), "-node-id", "node"}
		done <- runLocked(ctx, args, func(string) string { return "" }, os.Stdout, testLog{t}, lock)
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
