package csitest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A ruleRun is one run of a rule: the driver's services, and what a rule does with
// them.
type ruleRun struct {
	Identity   csi.IdentityClient // of the endpoint
	Controller csi.ControllerClient
	Group      csi.GroupControllerClient
	Metadata   csi.SnapshotMetadataClient
	Node       csi.NodeClient
	// ControllerIdentity is the Identity service of the controller's endpoint.
	ControllerIdentity csi.IdentityClient

	rule   Rule
	run    *run
	ctx    context.Context
	ledger *ledger
	n      int // of the ruleRun in the run
	names  int
	lost   atomic.Bool // a call could not connect, or got no answer
	// planted goes into every request that has a field for secrets, under plantedKey.
	planted string
	// streamed is the volume_capacity_bytes of the last stream that was read: 0 without a
	// message, -1 if it was not set.
	streamed atomic.Int64

	mu       sync.Mutex
	failures []Failure
}

// A Failure is one violation of a rule.
type Failure struct {
	Call      *Call  // nil if no single call shows it
	Want      string // in words
	Got       string
	Reproduce string // a command
}

// stop ends the function of a rule; the runner recovers it.
type stop struct{ excuse string }

// clients sets the services, through connections that record for c.
func (c *ruleRun) clients(cleanup bool) {
	node := &conn{to: c.run.node, endpoint: c.run.target.Endpoint, c: c, cleanup: cleanup}
	controller := node
	if c.run.controller != c.run.node {
		controller = &conn{to: c.run.controller, endpoint: c.run.target.ControllerEndpoint, c: c, cleanup: cleanup}
	}
	c.Identity, c.ControllerIdentity = csi.NewIdentityClient(node), csi.NewIdentityClient(controller)
	c.Controller, c.Group = csi.NewControllerClient(controller), csi.NewGroupControllerClient(controller)
	c.Metadata, c.Node = csi.NewSnapshotMetadataClient(controller), csi.NewNodeClient(node)
}

// context ends when the rule's time is over or the run is interrupted.
func (c *ruleRun) context() context.Context { return c.ctx }

// fail ends the rule: it is broken, for a reason that no single call shows.
func (c *ruleRun) fail(want, got string, args ...any) {
	c.error(want, got, args...)
	panic(stop{})
}

// error records a failure without ending the rule.
func (c *ruleRun) error(want, got string, args ...any) {
	c.breach(nil, want, fmt.Sprintf(got, args...))
}

// excuse ends the rule: the driver need not offer what the rule is about.
func (c *ruleRun) excuse(format string, args ...any) {
	panic(stop{excuse: fmt.Sprintf(format, args...)})
}

func (c *ruleRun) breach(call *Call, want, got string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = append(c.failures, Failure{Call: call, Want: want, Got: got, Reproduce: c.reproduce(call)})
}

// reproduce returns a command: the call itself, unless something has to come before it.
func (c *ruleRun) reproduce(call *Call) string {
	ids := c.rule.ID
	if call != nil && call.Rule != c.rule.ID && call.Rule != "" { // of a rule that checks the calls of others
		ids = call.Rule + "," + ids
	}
	if call != nil && call.Rule != "" && !call.needsMore() {
		json := strings.ReplaceAll(requestJSON(call.Request), "'", `'\''`)
		return fmt.Sprintf("%s call %s '%s'", c.run.cfg.ReproduceCommand, call.Method, json)
	}
	return fmt.Sprintf("%s -rules %s", c.run.cfg.ReproduceCommand, ids)
}

// needsMore reports whether the call is about something that has to be created first.
func (c *Call) needsMore() bool {
	return c.Request == nil || c.Volume != "" || len(requestJSON(c.Request)) > 500
}

// An answer is the result of an RPC.
type answer[Resp any] struct {
	*Call
	c    *ruleRun
	Resp *Resp
	Err  error
}

// send calls an RPC: send(c, c.Node.NodeStageVolume, req).
func send[Req, Resp any](c *ruleRun, rpc func(context.Context, *Req, ...grpc.CallOption) (*Resp, error), req *Req) answer[Resp] {
	return sendCtx(c.ctx, c, rpc, req)
}

// sendCtx is send with a context of the rule's own, such as one to be cancelled.
func sendCtx[Req, Resp any](ctx context.Context, c *ruleRun, rpc func(context.Context, *Req, ...grpc.CallOption) (*Resp, error), req *Req) answer[Resp] {
	ctx, call := withCall(ctx)
	resp, err := rpc(ctx, req)
	return answer[Resp]{Call: *call, c: c, Resp: resp, Err: err}
}

// ok demands success, and returns the response.
func (a answer[Resp]) ok() *Resp {
	a.wants(codes.OK)
	return a.Resp
}

// wants demands one of the codes.
func (a answer[Resp]) wants(want ...codes.Code) {
	if !a.is(want...) {
		a.wrong("%s", wantText(want))
	}
}

// is reports whether the code is one of these.
func (a answer[Resp]) is(want ...codes.Code) bool { return slices.Contains(want, a.Code()) }

// wrong ends the rule: the answer is not what want says in words.
func (a answer[Resp]) wrong(want string, args ...any) {
	a.c.breach(a.Call, fmt.Sprintf(want, args...), a.responseText())
	panic(stop{})
}

func wantText(want []codes.Code) string {
	names := make([]string, len(want))
	for i, w := range want {
		names[i] = w.String()
	}
	return strings.Join(names, " or ")
}

// invoke calls an RPC by its full name.
func (c *ruleRun) invoke(method string, req, resp proto.Message) answer[proto.Message] {
	to, endpoint := c.run.controller, c.run.target.ControllerEndpoint
	if strings.HasPrefix(method, "/csi.v1.Node/") || c.run.controller == c.run.node {
		to, endpoint = c.run.node, c.run.target.Endpoint
	}
	return c.invokeOver(&conn{to: to, endpoint: endpoint, c: c}, method, req, resp)
}

// invokeOver is invoke over a connection of the rule's own.
func (c *ruleRun) invokeOver(to *conn, method string, req, resp proto.Message) answer[proto.Message] {
	ctx, call := withCall(c.ctx)
	err := to.Invoke(ctx, method, req, resp)
	return answer[proto.Message]{Call: *call, c: c, Resp: &resp, Err: err}
}

// name is a new one, with the run's prefix.
func (c *ruleRun) name() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names++
	return fmt.Sprintf("%s-%d-%d", c.run.cfg.Prefix, c.n, c.names)
}

// has reports whether a need is met, for a rule that does more for drivers that can.
func (c *ruleRun) has(n Need) bool { return n.met(c.run) }

// parallel runs f n times concurrently and waits. A failure in one of them ends the
// rule when all have ended.
func (c *ruleRun) parallel(n int, f func(i int)) {
	var wg sync.WaitGroup
	panics := make([]any, n)
	for i := range n {
		wg.Go(func() {
			defer func() { panics[i] = recover() }()
			f(i)
		})
	}
	wg.Wait()
	for _, p := range panics {
		if p != nil {
			panic(p)
		}
	}
}

// uncertain: the CO does not know what happened and repeats the call.
func uncertain(err error) bool {
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted, codes.Unknown:
		return true
	}
	return false
}
