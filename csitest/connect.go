package csitest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// connect starts the driver, if that is asked for, and waits until it is ready.
func (r *run) connect(ctx context.Context) error {
	r.noteSiblings()
	for _, command := range []func() *exec.Cmd{r.target.Start, r.target.StartController} {
		if command == nil {
			continue
		}
		p := newProcess(command)
		if err := p.start(); err != nil {
			return err
		}
		r.processes = append(r.processes, p)
	}
	if len(r.processes) == 0 && r.target.Log != "" {
		r.logFrom = fileSize(r.target.Log)
	}
	var err error
	if r.node, err = dial(r.target.Endpoint); err != nil {
		return err
	}
	r.controller = r.node
	if r.target.ControllerEndpoint != "" {
		if r.controller, err = dial(r.target.ControllerEndpoint); err != nil {
			return err
		}
	}
	return r.ready(ctx)
}

// dial returns a connection that reconnects soon after a restart of the driver, and on which
// a call lasts no longer than kubelet's.
func dial(endpoint string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	cc, err := grpc.NewClient(endpoint, append(opts,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.6, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, resp any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			return invoke(ctx, method, req, resp, cc, opts...)
		}))...)
	if err != nil {
		return nil, fmt.Errorf("csitest: endpoint %s: %w", endpoint, err)
	}
	return cc, nil
}

// ready waits until every endpoint answers Probe with ready, or a process has exited.
func (r *run) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for _, p := range r.processes {
		go func(exited <-chan struct{}) {
			select {
			case <-exited:
				cancel()
			case <-ctx.Done():
			}
		}(p.exited)
	}
	for _, cc := range []*grpc.ClientConn{r.node, r.controller} {
		for {
			resp, err := csi.NewIdentityClient(cc).Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true))
			if err == nil && (resp.GetReady() == nil || resp.GetReady().GetValue()) {
				break
			}
			if exited := r.exited(); exited != nil {
				return exited
			}
			if ctx.Err() != nil || status.Code(err) == codes.Unimplemented {
				if err == nil {
					err = errors.New("ready is false")
				}
				return fmt.Errorf("csitest: the driver at %s is not ready: is it running, and is that its socket? Probe: %w", cc.Target(), err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return nil
}

// exited returns an error if a process that was started here has exited.
func (r *run) exited() error {
	for _, p := range r.processes {
		select {
		case <-p.exited:
			return fmt.Errorf("csitest: the driver has exited: %w; the end of its log:\n%s", p.err, p.logTail())
		default:
		}
	}
	return nil
}

// answers reports whether the driver still does, which takes some time under load.
func (r *run) answers(ctx context.Context) error {
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if err := r.exited(); err != nil {
			return err
		}
		probe, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := csi.NewIdentityClient(r.node).Probe(probe, &csi.ProbeRequest{})
		if err == nil && r.controller != r.node {
			_, err = csi.NewIdentityClient(r.controller).Probe(probe, &csi.ProbeRequest{})
		}
		cancel()
		if err == nil || time.Since(begin) > 5*time.Second {
			return err
		}
	}
}

// log is what the driver has logged since the run began.
func (c *ruleRun) log() []byte {
	if len(c.run.processes) > 0 {
		var all []byte
		for _, p := range c.run.processes {
			all = append(all, p.output()...)
		}
		return all
	}
	text, err := readFrom(c.run.target.Log, c.run.logFrom)
	if err != nil {
		panic(fmt.Sprintf("the driver's log: %v", err))
	}
	return text
}

// discover asks the driver what it can do.
func (r *run) discover(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	c := r.newRuleRun(ctx, Rule{})
	var err error
	if r.info, err = c.Identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}); err != nil {
		return fmt.Errorf("csitest: GetPluginInfo: %w", err)
	}
	r.report.Driver = r.info
	plugin, err := c.Identity.GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return fmt.Errorf("csitest: GetPluginCapabilities: %w", err)
	}
	for _, x := range plugin.GetCapabilities() {
		switch t := x.GetType().(type) {
		case *csi.PluginCapability_Service_:
			r.has.Plugin = append(r.has.Plugin, t.Service.GetType())
		case *csi.PluginCapability_VolumeExpansion_:
			r.has.Expansion = append(r.has.Expansion, t.VolumeExpansion.GetType())
		}
	}
	if controller, err := c.Controller.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{}); err == nil {
		r.has.Controller = []csi.ControllerServiceCapability_RPC_Type{}
		for _, x := range controller.GetCapabilities() {
			r.has.Controller = append(r.has.Controller, x.GetRpc().GetType())
		}
	}
	if group, err := c.Group.GroupControllerGetCapabilities(ctx, &csi.GroupControllerGetCapabilitiesRequest{}); err == nil {
		r.has.Group = []csi.GroupControllerServiceCapability_RPC_Type{}
		for _, x := range group.GetCapabilities() {
			r.has.Group = append(r.has.Group, x.GetRpc().GetType())
		}
	}
	if node, err := c.Node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{}); err == nil {
		r.has.Node = []csi.NodeServiceCapability_RPC_Type{}
		for _, x := range node.GetCapabilities() {
			r.has.Node = append(r.has.Node, x.GetRpc().GetType())
		}
		if info, err := c.Node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{}); err == nil {
			r.nodeID, r.place, r.maxVolumes = info.GetNodeId(), info.GetAccessibleTopology(), info.GetMaxVolumesPerNode()
		}
	}
	for _, s := range r.has.Plugin {
		r.has.SnapshotMetadata = r.has.SnapshotMetadata || s == csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE
	}
	r.validation = append(r.validation, csispec.WithCapabilities(r.has))
	r.report.Capabilities = r.has
	return nil
}

// refuseForeign keeps away from a driver that others use.
func (r *run) refuseForeign(ctx context.Context) error {
	if r.cfg.ForeignVolumes || !listVolumes.met(r) {
		return nil
	}
	c := r.newRuleRun(ctx, Rule{})
	list, err := c.Controller.ListVolumes(ctx, &csi.ListVolumesRequest{})
	if err != nil || len(list.GetEntries()) == 0 {
		return nil // what is wrong with ListVolumes is the rules' to find
	}
	var ids []string
	for _, e := range list.GetEntries() {
		ids = append(ids, e.GetVolume().GetVolumeId())
	}
	return &ForeignVolumesError{VolumeIDs: ids}
}

// A ForeignVolumesError is returned for a driver that has volumes already, unless
// [Config.ForeignVolumes] is set.
type ForeignVolumesError struct{ VolumeIDs []string }

func (e *ForeignVolumesError) Error() string {
	some := e.VolumeIDs
	if len(some) > 5 {
		some = append(slices.Clone(some[:5]), "…")
	}
	return fmt.Sprintf("csitest: the driver already has %d volumes (%s), which a run could damage: use other storage", len(e.VolumeIDs), strings.Join(some, ", "))
}

// offers reports whether volumes of that kind can be created. It is tried once, and the
// answer is remembered; concurrent callers wait for it.
func (r *run) offers(capability func(*run) *csi.VolumeCapability) bool {
	kind := capability(r)
	r.offering.Lock()
	defer r.offering.Unlock()
	known, tried := r.offered[kind.GetBlock() != nil]
	if tried || !createVolume.met(r) {
		return known
	}
	ctx, cancel := context.WithTimeout(context.Background(), DefaultTimeout)
	defer cancel()
	c := r.newRuleRun(ctx, Rule{})
	_, err := c.Controller.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: c.name(), CapacityRange: &csi.CapacityRange{RequiredBytes: r.cfg.Size},
		VolumeCapabilities: []*csi.VolumeCapability{kind}, Parameters: r.cfg.Parameters,
		AccessibilityRequirements: r.requirement(),
	})
	r.clean(ctx, c)
	r.offered[kind.GetBlock() != nil] = status.Code(err) != codes.InvalidArgument
	return r.offered[kind.GetBlock() != nil]
}

func (r *run) validate(m proto.Message) []csispec.Violation {
	return violations(csispec.Validate(m, r.validation...))
}

// legal reports whether the specification allows a CO to send the request to this driver. What
// a driver that takes an illegal one answers is for the rule that sent it.
func (r *run) legal(req proto.Message) bool { return len(r.validate(req)) == 0 }

// close ends the processes that were started here, and reports how they exited.
func (r *run) close() (stopped []string) {
	for _, cc := range []*grpc.ClientConn{r.node, r.controller} {
		if cc != nil {
			_ = cc.Close() // the second time of one connection is an error
		}
	}
	for _, p := range r.processes {
		stopped = append(stopped, p.stop())
	}
	return stopped
}
