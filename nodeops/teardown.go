package nodeops

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csierr"
)

// UnmountPolicy selects how Unpublish treats a mount that hangs: one whose unmount does not
// return, or that is busy with a process whose calls do not return.
type UnmountPolicy int

const (
	// UnmountWait only waits: the caller gets DEADLINE_EXCEEDED or ABORTED until the server
	// responds again or the kernel times out. The last unmount of an NFSv4 server waits
	// minutes for it, even if the mount was idle.
	UnmountWait UnmountPolicy = iota

	// UnmountForce aborts the requests to the server (MNT_FORCE), which NFS, CIFS and FUSE
	// support. All processes that wait for it get an error, also those of pods that have
	// the same share mounted elsewhere; data that was not yet sent to the server is lost. A
	// FUSE file system is disconnected (ENOTCONN) on all its mounts. Unpublish succeeds as
	// soon as nothing is mounted at the path, while the kernel may still try to write dirty
	// pages, which InFlight shows.
	UnmountForce

	// UnmountLazy is UnmountForce and, if that is not enough, detaches the mount
	// (MNT_DETACH): the path is free, the pod can be deleted, and the file system stays
	// active until its last user ends. A detached mount is in no mount table, so Unstage
	// succeeds afterwards, and the CO may detach the device and attach it to another node
	// while the file system is in use: for shares, not for devices.
	UnmountLazy
)

// runUnmount is run for an operation that unmounts: it applies the policy to a mount that
// hangs.
func (n *Node) runUnmount(ctx context.Context, op, volumeID, path string, fn func(context.Context, resolvedPath) error) (err error) {
	if n.unmount == UnmountWait {
		return n.run(ctx, op, volumeID, path, fn)
	}
	ctx, done := n.telemetry.operation(ctx, op, volumeID, path)
	defer func() { done(err) }()
	target, err := n.resolve(ctx, n.teardown, path)
	if err != nil {
		return wrap(op, volumeID, path, err)
	}
	run := func(ctx context.Context) error {
		return wrap(op, volumeID, path, n.serialized(ctx, n.teardown, target.path, fn))
	}
	retry := func(ctx context.Context) error {
		next := run(ctx)
		if isPending(err) && !isPending(next) && ctx.Err() != nil && errors.Is(next, ctx.Err()) {
			return err // no time was left to check: it still is
		}
		return next
	}
	err = n.withUnmountTimeout(ctx, run)
	for policy := UnmountForce; policy <= n.unmount && n.isHung(ctx, target.path, err); policy++ {
		n.log.Warn("unmounting a mount that hangs", "volume_id", volumeID, "path", path, "policy", policy.String(), "error", err)
		// With a key of its own, as the call that hangs has the path's. The next attempt
		// shows the result.
		force := func() {
			n.withUnmountTimeout(ctx, func(ctx context.Context) error {
				_, _, err := n.teardown.Do(ctx, target.path+" ("+policy.String()+" unmount)", func() (any, error) { return nil, unmountWith(policy, target.path) })
				return err
			})
		}
		force()
		// Processes that waited for the server release the mount once they have their
		// errors, or send another request, and wait again.
		deadline := time.Now().Add(n.unmountTimeout)
		for err = n.withUnmountTimeout(ctx, retry); isBusy(err) && ctx.Err() == nil && time.Now().Before(deadline); err = n.withUnmountTimeout(ctx, retry) {
			select {
			case <-time.After(10 * time.Millisecond):
				force()
			case <-ctx.Done():
			}
		}
	}
	if isPending(err) {
		return retry(ctx) // with the rest of the caller's time
	}
	return err
}

func (p UnmountPolicy) String() string {
	switch p {
	case UnmountWait:
		return "waiting"
	case UnmountForce:
		return "forced"
	case UnmountLazy:
		return "lazy"
	}
	return fmt.Sprintf("policy %d", int(p))
}

// isHung reports whether the attempt failed because of a mount that does not respond. A
// pending attempt is not enough: it may wait for a mkfs, a mount helper or an expansion in
// flight at the path, and a healthy mount is never forced.
func (n *Node) isHung(ctx context.Context, path string, failed error) bool {
	if !isPending(failed) && !isBusy(failed) {
		return false
	}
	var why error
	err := n.withUnmountTimeout(ctx, func(ctx context.Context) error {
		v, _, err := n.teardown.Do(ctx, path+" (check)", func() (any, error) { return corrupted(path), nil })
		why, _ = v.(error)
		return err
	})
	return ctx.Err() == nil && (why != nil || isPending(err))
}

// withUnmountTimeout runs fn with the time after which a mount is considered hung.
func (n *Node) withUnmountTimeout(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, n.unmountTimeout)
	defer cancel()
	return fn(ctx)
}

func isPending(err error) bool {
	var p *blocking.PendingError
	return errors.As(err, &p)
}

func isBusy(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == csierr.Busy
}
