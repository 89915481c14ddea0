package nodelifecycle

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	// lateTaint is how long RemoveTaint expects a taint that is not there: some node
	// groups taint a node after its first pods have started
	// (kubernetes-sigs/aws-ebs-csi-driver#2447).
	lateTaint = 10 * time.Minute
	// slowPoll is the longest interval of requests, registrationPoll that while only the
	// registration is missing, which keeps pods waiting.
	slowPoll, registrationPoll = 30 * time.Second, 5 * time.Second
)

// RemoveTaint removes the taints with that key, of any effect and value, from the node, as soon as
// CSINode lists the driver. It runs until the node has had no such taint for ten minutes, as
// the taint may be added after the driver has started, and then returns nil.
//
// A taint that is absent causes no write. No other taint is ever lost: the patch names
// what it removes, and the API server refuses it if the taints have changed. Every failure
// (no connection, a conflict, an overloaded server, a missing right, a Node that does not exist yet)
// is logged and retried with the current state, after one second at first and every 30 seconds in the
// end, or when the server asks for. The error is an [*Error]: key is not a taint's
// key, or ctx has ended.
//
// It may run on several processes concurrently, and again after a restart.
func (n *Node) RemoveTaint(ctx context.Context, key string) error {
	fail := func(err error) error { return &Error{Op: "remove taint", Object: "nodes/" + n.cfg.NodeName, Err: err} }
	if len(key) > 253+1+63 || !taintKey.MatchString(key) {
		return fail(fmt.Errorf("key %q: want the key of a taint, such as %s", key, DefaultTaint(n.cfg.DriverName)))
	}
	log := n.log.With("taint", key)
	var last taintState
	var absentSince time.Time
	for retry := new(backoff); ; {
		state, err := n.removeTaint(ctx, key)
		if ctx.Err() != nil {
			return fail(ctx.Err())
		}
		if state != last { // what comes next is another thing to wait for
			retry.next = 0
		}
		most := slowPoll
		switch state {
		case taintUnknown:
			log.Warn("could not remove the start-up taint; retrying", "error", err)
		case taintAwaitsDriver:
			most, absentSince = registrationPoll, time.Time{}
			if state != last {
				log.Info("the start-up taint stays until kubelet has registered the driver")
			}
		case taintRemoved:
			absentSince = time.Time{}
			log.Info("removed the start-up taint")
		case taintAbsent:
			if absentSince.IsZero() {
				absentSince = time.Now()
				log.Debug("the node does not have the start-up taint")
			} else if time.Since(absentSince) >= lateTaint {
				return nil
			}
		}
		last = state
		if !retry.wait(ctx, most, err) {
			return fail(ctx.Err())
		}
	}
}

type taintState int

const (
	taintUnknown taintState = iota // an attempt failed
	taintAwaitsDriver
	taintRemoved
	taintAbsent
)

// removeTaint is one attempt. It begins with the node as it is now: an old state would make
// every patch fail.
func (n *Node) removeTaint(ctx context.Context, key string) (taintState, error) {
	node, err := n.node(ctx)
	if err != nil {
		return taintUnknown, err
	}
	patch := untaint(node.Spec.Taints, key)
	if patch == nil {
		return taintAbsent, nil
	}
	if n.cfg.Registered != nil && n.cfg.Registered(ctx) != nil {
		return taintAwaitsDriver, nil
	}
	switch ok, err := n.registered(ctx); {
	case err != nil:
		return taintUnknown, err
	case !ok:
		return taintAwaitsDriver, nil
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return taintUnknown, &Error{Op: "patch", Object: "nodes/" + n.cfg.NodeName, Err: err}
	}
	if err := n.do(ctx, "patch", "nodes/"+n.cfg.NodeName, request{
		method: http.MethodPatch, path: "/api/v1/nodes/" + n.cfg.NodeName,
		query: url.Values{"fieldManager": {n.cfg.DriverName}}, patch: text,
	}, nil); err != nil {
		return taintUnknown, err
	}
	return taintRemoved, nil
}

// An operation of a JSON Patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value string `json:"value,omitempty"`
}

// untaint is the patch that removes the taints with a key, nil if there is none. Taints are an atomic list, of
// which other kinds of patch replace the whole. Each removal is preceded by tests of what is at
// its index: the API server applies the patch to the newest node, and if the list has
// changed, a test fails and nothing is written. It starts at the end, as a removal shifts
// what follows.
func untaint(taints []taint, key string) (patch []operation) {
	for i := len(taints) - 1; i >= 0; i-- {
		if taints[i].Key != key {
			continue
		}
		path := "/spec/taints/" + strconv.Itoa(i)
		patch = append(patch,
			operation{"test", path + "/key", key},
			operation{"test", path + "/effect", taints[i].Effect},
			operation{Op: "remove", Path: path})
	}
	return patch
}
