package nodelifecycle

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// detachPoll is the longest interval of requests while volumes are attached.
const detachPoll = 5 * time.Second

// maxUnauthorized is how long a token may be refused: an API server that has just started may
// do so for a moment, and for ever once the service account is deleted, as when a whole
// deployment is.
const maxUnauthorized = 10 * time.Second

// drainTaints are set on a node that is being emptied.
var drainTaints = []string{
	"node.kubernetes.io/unschedulable", // cordon and drain
	"ToBeDeletedByClusterAutoscaler",
	"karpenter.sh/disrupted",
	"karpenter.sh/disruption", // Karpenter before 1.0
}

// WaitForDetach returns nil immediately unless the node is being drained, and else once it has no
// VolumeAttachment of the driver. It waits until ctx ends, so give it a deadline; its error, an
// [*Error] which wraps that of ctx, then names the volumes that are still attached.
//
// What fails is retried within that time, also while it is not yet known whether the node is being
// drained. Only a missing right ends it early, and a token that is refused for ten seconds (the
// service account was deleted): they would delay each termination to no purpose. A drain that is cancelled ends it too. It changes nothing.
func (n *Node) WaitForDetach(ctx context.Context) error {
	var left []string
	var unauthorized time.Time // since when
	for retry := new(backoff); ; {
		draining, err := n.draining(ctx)
		if err == nil && !draining {
			n.log.Info("the node is not being drained: not waiting for volumes to be detached")
			return nil
		}
		if err == nil {
			var now []string
			if now, err = n.attachments(ctx); err == nil {
				if len(now) == 0 {
					n.log.Info("the node is being drained and has no volumes attached")
					return nil
				}
				if !slices.Equal(left, now) {
					n.log.Info("the node is being drained: waiting for volumes to be detached", "volumes", now)
				}
				left = now
			}
		}
		switch status := statusOf(err); {
		case status == http.StatusForbidden:
			return err
		case status != http.StatusUnauthorized:
			unauthorized = time.Time{}
		case unauthorized.IsZero():
			unauthorized = time.Now()
		case time.Since(unauthorized) >= maxUnauthorized:
			return err
		}
		if err != nil && ctx.Err() == nil {
			n.log.Warn("could not read what is attached to the node; retrying", "error", err)
		}
		if !retry.wait(ctx, detachPoll, err) {
			cause := ctx.Err()
			switch {
			case len(left) > 0:
				cause = fmt.Errorf("still attached: %s: %w", strings.Join(left, ", "), cause)
			case err != nil:
				cause = fmt.Errorf("%w: %w", cause, err)
			}
			return &Error{Op: "wait for detach", Object: "nodes/" + n.cfg.NodeName, Err: cause}
		}
	}
}

// draining says whether the node is being emptied: it is cordoned, an autoscaler removes
// it, or its object is deleted already.
func (n *Node) draining(ctx context.Context) (bool, error) {
	node, err := n.node(ctx)
	if statusOf(err) == http.StatusNotFound {
		return true, nil
	} else if err != nil {
		return false, err
	}
	return node.Metadata.DeletionTimestamp != nil || node.Spec.Unschedulable ||
		slices.ContainsFunc(node.Spec.Taints, func(t taint) bool { return slices.Contains(drainTaints, t.Key) }), nil
}
