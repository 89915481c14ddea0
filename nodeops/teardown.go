package nodeops

import (
	"context"
	"errors"
	"time"

	"github.com/csikit/csikit/blocking"
)

// UnmountPolicy is what may be done about a mount that hangs: whose unmount does not
// return, or that is busy with somebody whom it does not answer.
type UnmountPolicy int

const (
	// UnmountWait does nothing about it: the caller gets DEADLINE_EXCEEDED or ABORTED
	// until the server answers again, or the kernel gives up: the last unmount of an NFSv4
	// server waits for it for minutes, even when nobody used the mount.
	UnmountWait UnmountPolicy = iota

	// UnmountForce makes the file system give up what waits for its server
	// (MNT_FORCE), as NFS, CIFS and FUSE can. Whoever waits gets an error, also the
	// pods that have the same share mounted elsewhere; what they wrote and was
	// not yet at the server is lost. A FUSE file system is dead from then on, for all. Unpublish
	// succeeds as soon as nothing is mounted at the path, while the kernel may still try to
	// write what is left, which InFlight shows.
	UnmountForce

	// UnmountLazy is UnmountForce and, if that does not help, detaches the mount
	// (MNT_DETACH): the path is free, the pod can go, and the file system goes on until
	// its last user is gone. What was detached shows in no mount table, so Unstage
	// succeeds afterwards, and the CO may detach the device while the file system is in
	// use and give it to another node: for shares, not for devices.
	UnmountLazy
)

// runUnmount is run for an unmount that does about a mount that hangs what the policy
// allows.
func (n *Node) runUnmount(ctx context.Context, op, volumeID, path string, fn func(context.Context) error) (err error) {
	ctx, done := n.telemetry.operation(ctx, op, volumeID, path)
	defer func() { done(err) }()
	run := func(ctx context.Context) error { return wrap(op, volumeID, path, n.alone(ctx, path, fn)) }
	if n.unmount == UnmountWait {
		return run(ctx)
	}
	key, err := n.key(ctx, path)
	if err != nil {
		return wrap(op, volumeID, path, err)
	}
	again := func(ctx context.Context) error {
		next := run(ctx)
		if isPending(err) && !isPending(next) && ctx.Err() != nil && errors.Is(next, ctx.Err()) {
			return err // there was no time to look: it still is
		}
		return next
	}
	err = n.withUnmountTimeout(ctx, run)
	for policy := UnmountForce; policy <= n.unmount && n.hangs(ctx, key, err); policy++ {
		n.log.Warn("unmounting a mount that hangs", "volume_id", volumeID, "path", path, "by", policy.String(), "because", err)
		// Under a name of its own, as what hangs has the path's. What comes of it shows in
		// the next attempt.
		force := func() {
			n.withUnmountTimeout(ctx, func(ctx context.Context) error {
				_, _, err := n.blocking.Do(ctx, key+" ("+policy.String()+" unmount)", func() (any, error) { return nil, unmountBy(policy, key) })
				return err
			})
		}
		force()
		// Those who waited for the server let go of the mount once they have their errors,
		// or ask it for something else, and wait again.
		deadline := time.Now().Add(n.unmountTimeout)
		for err = n.withUnmountTimeout(ctx, again); isBusy(err) && ctx.Err() == nil && time.Now().Before(deadline); err = n.withUnmountTimeout(ctx, again) {
			select {
			case <-time.After(10 * time.Millisecond):
				force()
			case <-ctx.Done():
			}
		}
	}
	if isPending(err) {
		return again(ctx) // with the rest of the caller's time
	}
	return err
}

func (p UnmountPolicy) String() string {
	return [...]string{"waiting", "forced", "lazy"}[p]
}

// hangs reports whether the attempt failed because of a mount that does not answer.
// That it is pending does not say so: it may wait for a mkfs, a mount helper or an
// expansion that is under way at the path, and what lives is never forced.
func (n *Node) hangs(ctx context.Context, path string, failed error) bool {
	if !isPending(failed) && !isBusy(failed) {
		return false
	}
	var why error
	err := n.withUnmountTimeout(ctx, func(ctx context.Context) error {
		v, _, err := n.blocking.Do(ctx, path+" (does it answer)", func() (any, error) { return corrupted(path), nil })
		why, _ = v.(error)
		return err
	})
	return ctx.Err() == nil && (why != nil || isPending(err))
}

// withUnmountTimeout gives fn as long as a mount may take before it is said to hang.
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
	return errors.As(err, &e) && e.Kind == KindBusy
}
