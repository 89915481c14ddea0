package csitest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// whileBusy refuses a request while another with the same key is under way, with a code
// that does not say so. The first of a key waits for the second, which is how none
// is missed; it waits in vain where there is only one, but only once for every key.
func whileBusy[T any, M message[T]](key func(M) string, refusal codes.Code) grpc.UnaryServerInterceptor {
	var mu sync.Mutex
	busy, seen := map[string]chan struct{}{}, map[string]bool{}
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		r, ok := req.(M)
		if !ok || key(r) == "" {
			return handler(ctx, req)
		}
		k := key(r)
		mu.Lock()
		if other := busy[k]; other != nil {
			select {
			case <-other:
			default:
				close(other)
			}
			mu.Unlock()
			return nil, status.Error(refusal, "it is under way")
		}
		met, again := make(chan struct{}), seen[k]
		busy[k], seen[k] = met, true
		mu.Unlock()
		if !again {
			select {
			case <-met:
			case <-time.After(busyTime):
			}
		}
		resp, err := handler(ctx, req)
		mu.Lock()
		defer mu.Unlock()
		delete(busy, k)
		return resp, err
	}
}

// busyTime is how long a single call is held: long where few do.
var busyTime = func() time.Duration {
	if torture {
		return 50 * time.Millisecond
	}
	return 2 * time.Second
}()

// oneVolume finds the defects of other rules if the calls come in some order.
const oneVolume = "controller.parallel.one-volume"

// stuck leaves half of the work behind when a call is given up, by cancel or by
// deadline: the next one with the key fails, once.
func stuck[T any, M message[T]](key func(M) string, byDeadline bool) grpc.UnaryServerInterceptor {
	var mu sync.Mutex
	half, first := map[string]bool{}, map[string]chan struct{}{} // closed when the first call has ended
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		r, ok := req.(M)
		if !ok || key(r) == "" {
			return handler(ctx, req)
		}
		k := key(r)
		deadline, _ := ctx.Deadline()
		short := time.Until(deadline) < time.Second
		mu.Lock()
		ended, again := first[k]
		if !again {
			ended = make(chan struct{})
			first[k] = ended
		}
		mu.Unlock()
		if again {
			<-ended
			mu.Lock()
			bad := half[k]
			half[k] = false
			mu.Unlock()
			if bad {
				return nil, status.Error(codes.Internal, "it is half done")
			}
			return handler(ctx, req)
		}
		defer close(ended)
		wait := busyTime
		switch {
		case short != byDeadline:
			return handler(ctx, req)
		case short:
			wait = time.Minute // the end is certain
		}
		select {
		case <-ctx.Done():
			mu.Lock()
			defer mu.Unlock()
			half[k] = true
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-time.After(wait):
			return handler(ctx, req)
		}
	}
}

// interrupted are the defects of one RPC.
func interrupted[T any, M message[T]](prefix string, key func(M) string) []defect {
	refusal := codes.FailedPrecondition
	underWay, undone := "the call that was given up is still under way", "a call that cleans up may be refused as well"
	return []defect{
		{breaks: prefix + "after-cancel", does: "a cancelled call leaves half of the work", only: true, leaves: undone, unary: stuck(key, false)},
		{breaks: prefix + "after-deadline", does: "a call whose time is over leaves half of the work", only: true, leaves: undone, unary: stuck(key, true)},
		{
			breaks: prefix + "parallel", does: "FAILED_PRECONDITION while a call is under way", only: true, leaves: undone, unary: whileBusy(key, refusal),
			also: map[string]string{prefix + "after-cancel": underWay, prefix + "after-deadline": underWay},
		},
	}
}

// oneAnswer returns the answer for one name to a concurrent request for another.
func oneAnswer() grpc.UnaryServerInterceptor {
	var mu sync.Mutex
	var name string
	var joined chan struct{}
	var answer chan any
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		r, ok := req.(*csi.CreateVolumeRequest)
		if !ok {
			return handler(ctx, req)
		}
		mu.Lock()
		if name != "" {
			if r.GetName() == name || joined == nil {
				mu.Unlock()
				return handler(ctx, req)
			}
			close(joined)
			joined = nil
			from := answer
			mu.Unlock()
			if resp := <-from; resp != nil {
				return resp, nil
			}
			return handler(ctx, req)
		}
		name, joined, answer = r.GetName(), make(chan struct{}), make(chan any, 1)
		met, to := joined, answer
		mu.Unlock()
		select {
		case <-met:
		case <-time.After(busyTime):
		}
		resp, err := handler(ctx, req)
		to <- resp
		mu.Lock()
		name, joined = "", nil
		mu.Unlock()
		return resp, err
	}
}

// clash fails ValidateVolumeCapabilities when the volume is worked on meanwhile.
func clash() grpc.UnaryServerInterceptor {
	var mu sync.Mutex
	waiting := map[string]chan struct{}{}
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		r, ok := req.(*csi.ValidateVolumeCapabilitiesRequest)
		if !ok {
			mu.Lock()
			if m, ok := req.(interface{ GetVolumeId() string }); ok && waiting[m.GetVolumeId()] != nil {
				close(waiting[m.GetVolumeId()])
				delete(waiting, m.GetVolumeId())
			}
			mu.Unlock()
			return handler(ctx, req)
		}
		met := make(chan struct{})
		mu.Lock()
		waiting[r.GetVolumeId()] = met
		mu.Unlock()
		select {
		case <-met:
			return nil, status.Error(codes.Internal, "the volume has changed")
		case <-time.After(busyTime):
		}
		mu.Lock()
		delete(waiting, r.GetVolumeId())
		mu.Unlock()
		return handler(ctx, req)
	}
}

var interruptedDefects = slices.Concat(
	interrupted("controller.create.", (*csi.CreateVolumeRequest).GetName),
	interrupted("controller.delete.", (*csi.DeleteVolumeRequest).GetVolumeId),
	interrupted("controller.publish.", (*csi.ControllerPublishVolumeRequest).GetVolumeId),
	interrupted("controller.unpublish.", (*csi.ControllerUnpublishVolumeRequest).GetVolumeId),
	interrupted("controller.expand.", (*csi.ControllerExpandVolumeRequest).GetVolumeId),
	interrupted("controller.modify.", (*csi.ControllerModifyVolumeRequest).GetVolumeId),
	interrupted("controller.snapshot.", (*csi.CreateSnapshotRequest).GetName),
	interrupted("controller.snapshot.delete-", (*csi.DeleteSnapshotRequest).GetSnapshotId),
	interrupted("group.create.", (*csi.CreateVolumeGroupSnapshotRequest).GetName),
	interrupted("group.delete.", (*csi.DeleteVolumeGroupSnapshotRequest).GetGroupSnapshotId),
	[]defect{
		{breaks: "controller.parallel.many-names", does: "one answer for two concurrent names", only: true, unary: oneAnswer()},
		{breaks: "controller.parallel.one-volume", does: "INTERNAL when the volume is worked on meanwhile", only: true, unary: clash()},
	},
)
