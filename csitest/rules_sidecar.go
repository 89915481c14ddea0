package csitest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// A sidecar of Kubernetes, by what it asks when it starts, in its order. Each makes a
// separate connection, for which it waits half a minute.
type sidecar struct {
	name  string
	needs []Need
	node  bool // it is beside the node plugin
	asks  []question
}

// A question is calls that have to be answered within a time, together.
type question struct {
	limit     time.Duration
	calls     []string // Service/Method
	reconnect bool     // on a new connection
}

const (
	probe          = "Identity/Probe" // again every second, until it says ready
	pluginInfo     = "Identity/GetPluginInfo"
	pluginCaps     = "Identity/GetPluginCapabilities"
	controllerCaps = "Controller/ControllerGetCapabilities"
	groupCaps      = "GroupController/GroupControllerGetCapabilities"
)

func answered(limit time.Duration, calls ...string) question {
	return question{limit: limit, calls: calls}
}

// The limits are the defaults of the flags, or constants where there is no flag.
var sidecars = []sidecar{
	{"node-driver-registrar", needs(nodeService), true, []question{answered(time.Second, pluginInfo)}},
	{"livenessprobe", nil, true, []question{
		answered(readyTimeout, pluginInfo), {limit: 3 * time.Second, calls: []string{probe}, reconnect: true},
	}},
	{"external-provisioner", needs(createVolume), false, []question{
		answered(10*time.Second, probe), answered(10*time.Second, pluginInfo), answered(10*time.Second, pluginCaps), answered(10*time.Second, controllerCaps),
	}},
	{"external-attacher", needs(attachVolume), false, []question{
		answered(15*time.Second, probe), answered(time.Second, pluginInfo), answered(time.Second, pluginCaps, controllerCaps),
	}},
	{"external-resizer", needs(expandVolume), false, []question{
		answered(10*time.Second, probe), answered(10*time.Second, pluginInfo), answered(10*time.Second, pluginCaps),
		answered(10*time.Second, controllerCaps), answered(10*time.Second, controllerCaps), answered(10*time.Second, controllerCaps),
	}},
	{"external-resizer-node-only", needs(without(expandVolume), nodeExpandVolume), false, []question{
		answered(10*time.Second, probe), answered(10*time.Second, pluginInfo), answered(10*time.Second, pluginCaps),
		answered(10*time.Second, controllerCaps), answered(10*time.Second, "Node/NodeGetCapabilities"), // on the controller's endpoint
	}},
	{"external-health-monitor", needs(volumeHealth), false, []question{
		answered(time.Second, pluginInfo, pluginCaps, controllerCaps, controllerCaps, controllerCaps),
	}},
	{"external-snapshotter", needs(createSnapshot), false, []question{
		answered(time.Minute, pluginInfo), answered(time.Minute, probe), answered(time.Minute, controllerCaps),
	}},
	{"external-snapshotter-groups", needs(createSnapshot, groupService), false, []question{
		answered(time.Minute, pluginInfo), answered(time.Minute, probe), answered(time.Minute, controllerCaps), answered(time.Minute, groupCaps),
	}},
}

var sidecarRules = func() (rules []Rule) {
	for _, s := range sidecars {
		rules = append(rules, Rule{
			ID: "sidecar." + s.name, Level: Must, Spec: s.name,
			Title: "the calls of " + s.name + " at its start are answered within its timeouts",
			Why: "A sidecar that does not get its answer exits, and Kubernetes restarts its container, or the driver's, forever if the answer never comes in time. " +
				"Asked is: " + s.text() + ". Three tries are made.",
			Needs: s.needs, Timeout: 3 * time.Minute,
			check: s.check,
		})
	}
	return rules
}()

func (s sidecar) text() string {
	var all []string
	for _, q := range s.asks {
		all = append(all, fmt.Sprintf("%s within %v", strings.Join(q.calls, " and "), q.limit))
	}
	return strings.Join(all, ", then ")
}

func (s sidecar) check(c *ruleRun) {
	for range 2 {
		if call, _ := s.start(c); call == nil {
			return
		}
	}
	if call, limit := s.start(c); call != nil {
		c.breach(call, fmt.Sprintf("OK, and ready, within the %v that %s waits", limit, s.name), fmt.Sprintf("%s after %v", call.responseText(), call.Took.Round(time.Millisecond)))
	}
}

// start makes all calls, and returns the one that was not answered as it should be.
func (s sidecar) start(c *ruleRun) (bad *Call, limit time.Duration) {
	endpoint := c.run.target.Endpoint
	if !s.node && c.run.target.ControllerEndpoint != "" {
		endpoint = c.run.target.ControllerEndpoint
	}
	var cc *grpc.ClientConn
	for _, q := range s.asks {
		if cc == nil || q.reconnect {
			cc = c.dial(endpoint, s.name)
			defer cc.Close()
		}
		ctx, cancel := context.WithTimeout(c.ctx, q.limit)
		defer cancel()
		for _, method := range q.calls {
			if call, good := c.ask(ctx, &conn{to: cc, endpoint: endpoint, c: c}, method); !good {
				return call, q.limit
			}
		}
	}
	return nil, 0
}

// dial makes a connection under a name, and waits until it is there.
func (c *ruleRun) dial(endpoint, name string) *grpc.ClientConn {
	cc, err := dial(endpoint, grpc.WithUserAgent("csicheck as "+name))
	if err != nil {
		c.fail("a connection", "%v", err)
	}
	ctx, cancel := context.WithTimeout(c.ctx, readyTimeout)
	defer cancel()
	cc.Connect()
	for state := cc.GetState(); state != connectivity.Ready; state = cc.GetState() {
		if !cc.WaitForStateChange(ctx, state) {
			cc.Close()
			c.fail("a connection within "+readyTimeout.String(), "%v", state)
		}
	}
	return cc
}

// ask makes one call, and reports whether the sidecar continues. Probe is made again while it
// says that the driver is not ready; an error ends a sidecar.
func (c *ruleRun) ask(ctx context.Context, to *conn, method string) (call *Call, good bool) {
	service, name, _ := strings.Cut(method, "/")
	for {
		ctx, call := withCall(ctx)
		resp := newMessage(name + "Response")
		err := to.Invoke(ctx, "/csi.v1."+service+"/"+name, newMessage(name+"Request"), resp)
		p, probes := resp.(*csi.ProbeResponse)
		if err != nil || !probes || p.GetReady() == nil || p.GetReady().GetValue() {
			return *call, err == nil
		}
		select {
		case <-ctx.Done():
			return *call, false
		case <-time.After(time.Second):
		}
	}
}
