package csiserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

var info = csiserver.Info{Name: "test.csikit.dev", VendorVersion: "v1"}

func newServer(t *testing.T, opts ...csiserver.Option) *csiserver.Server {
	t.Helper()
	s, err := csiserver.New(info, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// plugin is a served server and a client of it.
type plugin struct {
	t    *testing.T
	conn *grpc.ClientConn
	stop context.CancelFunc
	done chan error
}

func start(t *testing.T, s *csiserver.Server, lis net.Listener) *plugin {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &plugin{t: t, stop: cancel, done: make(chan error, 1)}
	go func() { p.done <- s.Serve(ctx, lis) }()
	conn, err := grpc.NewClient("unix://"+lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	p.conn = conn
	t.Cleanup(func() {
		conn.Close()
		cancel()
		<-p.done
	})
	return p
}

// wait ends the plugin and returns what Serve does.
func (p *plugin) wait() error {
	p.stop()
	err := <-p.done
	p.done <- err // for the cleanup
	return err
}

func (p *plugin) node() csi.NodeClient { return csi.NewNodeClient(p.conn) }

func (p *plugin) probe() {
	p.t.Helper()
	if _, err := csi.NewIdentityClient(p.conn).Probe(p.t.Context(), &csi.ProbeRequest{}); err != nil {
		p.t.Error(err)
	}
}

func serve(t *testing.T, opts ...csiserver.Option) *plugin {
	t.Helper()
	return start(t, newServer(t, opts...), listen(t, dir(t)+"/csi.sock"))
}

// node is a Node service of functions.
type node struct {
	csi.UnimplementedNodeServer
	caps      []csi.NodeServiceCapability_RPC_Type
	unpublish func(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) error
	publish   func(ctx context.Context, r *csi.NodePublishVolumeRequest) error
	stats     func(ctx context.Context, r *csi.NodeGetVolumeStatsRequest) error
}

func (n *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	r := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range n.caps {
		r.Capabilities = append(r.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}}})
	}
	return r, nil
}

func (n *node) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, n.unpublish(ctx, r)
}

func (n *node) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, n.publish(ctx, r)
}

func (n *node) NodeGetVolumeStats(ctx context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	return &csi.NodeGetVolumeStatsResponse{}, n.stats(ctx, r)
}

func (n *node) NodeStageVolume(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return nil, errors.New("not in this test")
}

func (n *node) NodeUnstageVolume(context.Context, *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return nil, errors.New("not in this test")
}

type controller struct {
	csi.UnimplementedControllerServer
	caps []csi.ControllerServiceCapability_RPC_Type
}

func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	r := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range c.caps {
		r.Capabilities = append(r.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}}})
	}
	return r, nil
}

func (c *controller) ControllerExpandVolume(context.Context, *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	return nil, errors.New("not in this test")
}

type group struct {
	csi.UnimplementedGroupControllerServer
}

func (group) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{}, nil
}

type metadata struct {
	csi.UnimplementedSnapshotMetadataServer
	allocated func(r *csi.GetMetadataAllocatedRequest, s csi.SnapshotMetadata_GetMetadataAllocatedServer) error
}

func (m *metadata) GetMetadataAllocated(r *csi.GetMetadataAllocatedRequest, s csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	return m.allocated(r, s)
}

func (m *metadata) GetMetadataDelta(*csi.GetMetadataDeltaRequest, csi.SnapshotMetadata_GetMetadataDeltaServer) error {
	return errors.New("not in this test")
}

// allocated makes a call and returns the error that ends its stream.
func (p *plugin) allocated(r *csi.GetMetadataAllocatedRequest) (messages int, err error) {
	p.t.Helper()
	s, err := csi.NewSnapshotMetadataClient(p.conn).GetMetadataAllocated(p.t.Context(), r)
	if err != nil {
		p.t.Fatal(err)
	}
	for {
		if _, err := s.Recv(); err != nil {
			return messages, err
		}
		messages++
	}
}

var unpublishRequest = &csi.NodeUnpublishVolumeRequest{VolumeId: "vol-1", TargetPath: "/pods/1/mount"}

func publishRequest() *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{
		VolumeId: "vol-1", TargetPath: "/pods/1/mount",
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: []string{"noatime", "password=fl4g-s3cret"}}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
		Secrets: map[string]string{"password": "f1eld-s3cret"},
		VolumeContext: map[string]string{
			"csi.storage.k8s.io/serviceAccount.tokens": `{"aud":{"token":"t0ken-s3cret"}}`,
			"mine": "k3y-s3cret", "share": "backup",
		},
	}
}

var planted = []string{"fl4g-s3cret", "f1eld-s3cret", "t0ken-s3cret", "k3y-s3cret"}

// logBook is a handler's target that may be read while calls are running.
type logBook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logBook) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: level}))
}

// lines returns the lines with a message, as documents.
func (l *logBook) lines(t *testing.T, msg string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for line := range strings.Lines(l.String()) {
		var doc map[string]any
		if err := json.Unmarshal([]byte(line), &doc); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if doc["msg"] == msg {
			out = append(out, doc)
		}
	}
	return out
}

func TestNewRefuses(t *testing.T) {
	long := strings.Repeat("x", 129)
	ctrl := func(caps ...csi.ControllerServiceCapability_RPC_Type) csiserver.Option {
		return csiserver.WithController(&controller{caps: caps})
	}
	for _, tt := range []struct {
		name string
		info csiserver.Info
		opts []csiserver.Option
		text string
	}{
		{"no info", csiserver.Info{}, nil, "name is required; vendor_version is required"},
		{"name", csiserver.Info{Name: "a_b", VendorVersion: "1"}, nil, "csi.example.com"},
		{"version", csiserver.Info{Name: "a", VendorVersion: long}, nil, "the limit is 128"},
		{"manifest", csiserver.Info{Name: "a", VendorVersion: "1", Manifest: map[string]string{"k": strings.Repeat("x", 4096)}}, nil, "manifest holds 4097 bytes"},
		{"nil services", info, []csiserver.Option{csiserver.WithNode(nil), csiserver.WithController(nil), csiserver.WithGroupController(nil),
			csiserver.WithSnapshotMetadata(nil), csiserver.WithIdentity(nil), csiserver.WithReady(nil)}, "WithSnapshotMetadata: the server is nil"},
		{"nil interceptors", info, []csiserver.Option{csiserver.WithInterceptors(csiserver.Interceptor{})}, "neither Unary nor Stream"},
		{"drain timeout", info, []csiserver.Option{csiserver.WithDrainTimeout(-1)}, "negative"},
		{"controller capabilities", info, []csiserver.Option{ctrl(csi.ControllerServiceCapability_RPC_CLONE_VOLUME)}, "needs controller.CREATE_DELETE_VOLUME"},
		{"expansion", info, []csiserver.Option{ctrl(), csiserver.WithNode(&node{}), csiserver.WithVolumeExpansion(csi.PluginCapability_VolumeExpansion_ONLINE)}, "volume_expansion.ONLINE"},
		{"stubs", info, []csiserver.Option{ctrl(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME)},
			"controller.CREATE_DELETE_VOLUME promises CreateVolume, which is the stub that answers UNIMPLEMENTED: implement it, or drop this " +
				"(spec.md, section CreateVolume: a plugin with this capability MUST implement this RPC); controller.CREATE_DELETE_VOLUME promises DeleteVolume"},
		{"capability validation", info, []csiserver.Option{csiserver.WithCapabilityValidation(0)}, "mode is unknown"},
		{"capabilities fail", info, []csiserver.Option{csiserver.WithController(csi.UnimplementedControllerServer{})}, "ControllerGetCapabilities"},
		{"identity differs", info, []csiserver.Option{csiserver.WithIdentity(ident{name: "other"})}, "make them agree"},
		{"identity and options", info, []csiserver.Option{csiserver.WithIdentity(ident{name: info.Name}), csiserver.WithPluginCapabilities(1)}, "WithIdentity excludes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := csiserver.New(tt.info, tt.opts...)
			var e *csiserver.Error
			if !errors.As(err, &e) || e.Op != "new" || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %q", err, tt.text)
			}
		})
	}
	t.Run("violations are found", func(t *testing.T) {
		_, err := csiserver.New(info, ctrl(csi.ControllerServiceCapability_RPC_CLONE_VOLUME))
		if _, ok := errors.AsType[*csispec.Violations](err); !ok {
			t.Errorf("%#v", err)
		}
	})
}

// What the specification forbids keeps a driver from starting, unless the driver asks
// for warnings; everything else is a warning.
func TestCapabilityValidation(t *testing.T) {
	const (
		clone   = csi.ControllerServiceCapability_RPC_CLONE_VOLUME // without CREATE_DELETE_VOLUME
		modify  = csi.ControllerServiceCapability_RPC_MODIFY_VOLUME
		expand  = csi.NodeServiceCapability_RPC_EXPAND_VOLUME // without volume_expansion
		removed = 4
	)
	forbidden := []string{"controller.CLONE_VOLUME", "controller.MODIFY_VOLUME"}
	allowed := []string{"node.4", "plugin.CONTROLLER_SERVICE", "plugin.SNAPSHOT_METADATA_SERVICE", "node.EXPAND_VOLUME",
		"plugin.SNAPSHOT_METADATA_SERVICE", "plugin.SNAPSHOT_METADATA_SERVICE"}
	warnings := []csiserver.Option{
		csiserver.WithIdentity(ident{name: info.Name}), // which reports no services
		csiserver.WithNode(&expander{node{caps: []csi.NodeServiceCapability_RPC_Type{expand, removed}}}),
		csiserver.WithSnapshotMetadata(csi.UnimplementedSnapshotMetadataServer{}),
	}
	contradictions := csiserver.WithController(&controller{caps: []csi.ControllerServiceCapability_RPC_Type{clone, modify}})
	for _, tt := range []struct {
		name   string
		opts   []csiserver.Option
		logged []string
	}{
		{"allowed", []csiserver.Option{csiserver.WithController(&controller{})}, allowed},
		{"warn", []csiserver.Option{contradictions, csiserver.WithCapabilityValidation(csiserver.ValidationWarn)}, slices.Concat(forbidden, allowed)},
		{"off", []csiserver.Option{contradictions, csiserver.WithCapabilityValidation(csiserver.ValidationOff)}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			book := &logBook{}
			p := serve(t, slices.Concat(warnings, tt.opts, []csiserver.Option{csiserver.WithLogger(book.logger(slog.LevelWarn))})...)
			if err := p.wait(); err != nil {
				t.Error(err)
			}
			var logged []string
			for _, line := range book.lines(t, "capabilities contradict each other or the RPCs that are implemented") {
				logged = append(logged, fmt.Sprint(line["capability"]))
			}
			if !slices.Equal(logged, tt.logged) {
				t.Errorf("logged %q, want %q", logged, tt.logged)
			}
		})
	}
	if _, err := csiserver.New(info, append(warnings, contradictions)...); err == nil || strings.Contains(err.Error(), "EXPAND_VOLUME") {
		t.Errorf("got %v, want what is forbidden alone", err)
	}
}

type expander struct{ node }

func (*expander) NodeExpandVolume(context.Context, *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return &csi.NodeExpandVolumeResponse{}, nil
}

type ident struct {
	csi.UnimplementedIdentityServer
	name string
	caps []*csi.PluginCapability
}

func (i ident) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.name, VendorVersion: "v1"}, nil
}

func (i ident) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: i.caps}, nil
}

func TestIdentity(t *testing.T) {
	var ready func() (bool, error)
	p := start(t, newServer(t,
		csiserver.WithController(&controller{caps: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_EXPAND_VOLUME}}),
		csiserver.WithGroupController(group{}), csiserver.WithSnapshotMetadata(&metadata{}), csiserver.WithNode(&node{}),
		csiserver.WithPluginCapabilities(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS, csi.PluginCapability_Service_CONTROLLER_SERVICE),
		csiserver.WithVolumeExpansion(csi.PluginCapability_VolumeExpansion_ONLINE),
		csiserver.WithReady(func(context.Context) (bool, error) { return ready() }),
	), listen(t, dir(t)+"/csi.sock"))
	c := csi.NewIdentityClient(p.conn)

	got, err := c.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	if err != nil || got.GetName() != info.Name || got.GetVendorVersion() != info.VendorVersion {
		t.Errorf("got %v, %v", got, err)
	}
	caps, err := c.GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, x := range caps.GetCapabilities() {
		if s := x.GetService(); s != nil {
			names = append(names, s.GetType().String())
		} else {
			names = append(names, x.GetVolumeExpansion().GetType().String())
		}
	}
	if want := []string{"CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS", "GROUP_CONTROLLER_SERVICE", "SNAPSHOT_METADATA_SERVICE", "ONLINE"}; !slices.Equal(names, want) {
		t.Errorf("capabilities %q, want %q", names, want)
	}
	for _, tt := range []struct {
		ready bool
		err   error
		want  codes.Code
	}{
		{true, nil, codes.OK}, {false, nil, codes.OK},
		{false, errors.New("no backend"), codes.FailedPrecondition},
		{true, status.Error(codes.Unavailable, "wait"), codes.Unavailable},
	} {
		ready = func() (bool, error) { return tt.ready, tt.err }
		r, err := c.Probe(t.Context(), &csi.ProbeRequest{})
		if status.Code(err) != tt.want || err == nil && r.GetReady().GetValue() != tt.ready {
			t.Errorf("%+v: got %v, %v", tt, r, err)
		}
	}
}

func TestOwnIdentity(t *testing.T) {
	p := serve(t, csiserver.WithIdentity(ident{name: info.Name, caps: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}}},
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_OFFLINE}}},
	}}), csiserver.WithController(&controller{caps: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_EXPAND_VOLUME}}))
	if _, err := csi.NewIdentityClient(p.conn).Probe(t.Context(), &csi.ProbeRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("not the driver's Probe: %v", err)
	}
}

func TestUnregisteredService(t *testing.T) {
	p := serve(t)
	if _, err := p.node().NodeUnpublishVolume(t.Context(), unpublishRequest); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
}

func TestServeStopsGracefully(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	book := &logBook{}
	p := serve(t, csiserver.WithLogger(book.logger(slog.LevelInfo)), csiserver.WithNode(&node{unpublish: func(ctx context.Context, _ *csi.NodeUnpublishVolumeRequest) error {
		close(entered)
		<-release
		return ctx.Err() // a stop must not end the contexts of calls
	}}))
	path := strings.TrimPrefix(p.conn.Target(), "unix://")
	result := make(chan error, 1)
	go func() {
		_, err := p.node().NodeUnpublishVolume(context.Background(), unpublishRequest)
		result <- err
	}()
	<-entered
	p.stop()
	// The socket goes away at once, so that a successor can start.
	for exists(path) {
		runtime.Gosched()
	}
	select {
	case err := <-p.done:
		t.Fatalf("Serve returned %v with a call in flight", err)
	default:
	}
	close(release)
	if err := <-result; err != nil {
		t.Errorf("the call in flight got %v", err)
	}
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	for _, msg := range []string{"serving", "stopping", "stopped"} {
		if len(book.lines(t, msg)) != 1 {
			t.Errorf("no line %q in %s", msg, book)
		}
	}
}

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

func TestServeAbortsHandlersAfterTheDrainTimeout(t *testing.T) {
	for _, tt := range []struct {
		name    string
		handler func(ctx context.Context, release <-chan struct{})
	}{
		{"deaf", func(_ context.Context, release <-chan struct{}) { <-release }},
		{"slow", func(ctx context.Context, _ <-chan struct{}) { <-ctx.Done() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			entered, release := make(chan struct{}), make(chan struct{})
			defer close(release)
			p := serve(t, csiserver.WithDrainTimeout(10*time.Millisecond), csiserver.WithNode(&node{unpublish: func(ctx context.Context, _ *csi.NodeUnpublishVolumeRequest) error {
				close(entered)
				tt.handler(ctx, release)
				return nil
			}}))
			result := make(chan error, 1)
			go func() {
				_, err := p.node().NodeUnpublishVolume(context.Background(), unpublishRequest)
				result <- err
			}()
			<-entered
			err := p.wait()
			var e *csiserver.Error
			if !errors.As(err, &e) || e.Op != "serve" || !strings.Contains(err.Error(), "calls aborted after the drain timeout of 10ms: NodeUnpublishVolume (request_id ") {
				t.Errorf("got %v", err)
			}
			// The outcome is not known, and kubelet has to see that.
			if code := status.Code(<-result); code != codes.Unavailable && code != codes.Canceled {
				t.Errorf("the client got %v", code)
			}
		})
	}
}

// pipes is a listener whose connections are handed over, so that Accept has
// happened when dial returns.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// gRPC waits for the handshake of a client that says nothing, even in a hard
// stop.
func TestServeEndsWithSilentClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const drain = 2 * time.Second
		lis := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		s := newServer(t, csiserver.WithDrainTimeout(drain))
		go func() { done <- s.Serve(ctx, lis) }()
		client, server := net.Pipe()
		defer client.Close()
		lis.conns <- server
		synctest.Wait()
		cancel()
		stop := time.Now()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if d := time.Since(stop); d > drain+time.Second {
			t.Errorf("Serve took %v", d)
		}
	})
}

func TestServeOnce(t *testing.T) {
	s := newServer(t)
	p := start(t, s, listen(t, dir(t)+"/csi.sock"))
	p.probe()
	other := listen(t, dir(t)+"/csi.sock")
	if err := s.Serve(t.Context(), other); err == nil || !strings.Contains(err.Error(), "served already") {
		t.Error(err)
	}
	if !exists(other.Addr().String()) {
		t.Error("the other listener was closed")
	}
	p.probe()
}

func TestServeWithEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l := listen(t, dir(t)+"/csi.sock")
	if err := newServer(t).Serve(ctx, l); err != nil {
		t.Error(err)
	}
	if exists(l.Addr().String()) {
		t.Error("the socket is still there")
	}
}

func TestServeReportsAFailedListener(t *testing.T) {
	l := listen(t, dir(t)+"/csi.sock")
	p := start(t, newServer(t), l)
	p.probe()
	l.Close()
	err := <-p.done
	p.done <- err
	if !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// badClose fails to close, once.
type badClose struct {
	net.Listener
	closed bool
}

var errClose = errors.New("cannot close")

func (b *badClose) Close() error {
	if b.closed {
		return net.ErrClosed
	}
	b.closed = true
	return errors.Join(b.Listener.Close(), errClose)
}

func TestServeReportsAFailedClose(t *testing.T) {
	p := start(t, newServer(t), &badClose{Listener: listen(t, dir(t)+"/csi.sock")})
	p.probe()
	if err := p.wait(); !errors.Is(err, errClose) {
		t.Errorf("got %v", err)
	}
}

// The program may close the listener when it stops, in any
// order with Serve.
func TestCloseRacesServe(t *testing.T) {
	for _, listenWith := range []func(path string) net.Listener{
		func(path string) net.Listener { return listen(t, path) },
		func(path string) net.Listener {
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			return l
		},
	} {
		for range 20 {
			path := dir(t) + "/csi.sock"
			l := listenWith(path)
			ctx, cancel := context.WithCancel(t.Context())
			s := newServer(t)
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := s.Serve(ctx, l); err != nil {
					t.Error(err)
				}
			})
			cancel()
			wg.Go(func() { l.Close() })
			wg.Wait()
			if exists(path) {
				t.Error("the socket is still there")
			}
		}
	}
}

func TestServeLeaksNothing(t *testing.T) {
	p := serve(t, csiserver.WithNode(&node{unpublish: func(context.Context, *csi.NodeUnpublishVolumeRequest) error { return nil }}))
	p.probe()
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	p.conn.Close()
	// Goroutines that are ending may take a while; those that leak stay until
	// the test times out.
	for {
		var b bytes.Buffer
		pprof.Lookup("goroutine").WriteTo(&b, 2)
		n := 0
		for g := range strings.SplitSeq(b.String(), "\n\n") {
			if strings.Contains(g, "grpc.(*Server)") || strings.Contains(g, "csiserver.(*Server)") {
				n++
			}
		}
		if n == 0 {
			return
		}
		runtime.Gosched()
	}
}

func TestValidationComesFirst(t *testing.T) {
	reached := 0
	p := serve(t,
		csiserver.WithNode(&node{
			caps:      []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
			unpublish: func(context.Context, *csi.NodeUnpublishVolumeRequest) error { return nil },
			stats: func(context.Context, *csi.NodeGetVolumeStatsRequest) error {
				return status.Error(codes.NotFound, "no such path")
			},
		}),
		csiserver.WithSnapshotMetadata(&metadata{allocated: func(*csi.GetMetadataAllocatedRequest, csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
			t.Error("the handler was reached")
			return nil
		}}),
		csiserver.WithValidationOptions(csispec.WithCSISanity()),
		csiserver.WithInterceptors(csiserver.Interceptor{Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			reached++
			return next(ctx, req)
		}}))
	if _, err := p.node().NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{}); status.Code(err) != codes.InvalidArgument ||
		!strings.Contains(err.Error(), "volume_id") || !strings.Contains(err.Error(), "target_path") {
		t.Error(err)
	}
	// STAGE_UNSTAGE_VOLUME is known from the service.
	if _, err := p.node().NodePublishVolume(t.Context(), publishRequest()); status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
	if n, err := p.allocated(&csi.GetMetadataAllocatedRequest{}); n != 0 || status.Code(err) != codes.InvalidArgument {
		t.Errorf("%d messages, %v", n, err)
	}
	if reached != 0 {
		t.Errorf("the driver's interceptor saw %d bad requests", reached)
	}
	if _, err := p.node().NodeUnpublishVolume(t.Context(), unpublishRequest); err != nil || reached != 1 {
		t.Errorf("a good request: %v, %d", err, reached)
	}
	if _, err := p.node().NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "some/path"}); status.Code(err) != codes.NotFound {
		t.Errorf("the options of WithValidation are not in use: %v", err)
	}
}

func TestPanic(t *testing.T) {
	book := &logBook{}
	p := serve(t, csiserver.WithLogger(book.logger(slog.LevelInfo)), csiserver.WithRedactedKeys("mine"),
		csiserver.WithNode(&node{
			publish: func(_ context.Context, r *csi.NodePublishVolumeRequest) error {
				panic(fmt.Sprintf("cannot use %q", r.GetSecrets()["password"]))
			},
			stats: func(context.Context, *csi.NodeGetVolumeStatsRequest) error { panic(errors.New("boom")) },
		}),
		csiserver.WithSnapshotMetadata(&metadata{allocated: func(_ *csi.GetMetadataAllocatedRequest, s csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
			if err := s.Send(&csi.GetMetadataAllocatedResponse{}); err != nil {
				return err
			}
			panic("boom in a stream")
		}}))
	check := func(err error, code codes.Code, method, text string) {
		t.Helper()
		if status.Code(err) != code || !strings.Contains(err.Error(), method+" panicked") {
			t.Errorf("%s: %v, want %v", method, err, code)
		}
		lines := book.lines(t, "rpc panicked")
		last := lines[len(lines)-1]
		if last["rpc"] != method || !strings.Contains(fmt.Sprint(last["panic"]), text) || !strings.Contains(fmt.Sprint(last["stack"]), "server_test.go") ||
			!strings.Contains(err.Error(), fmt.Sprint(last["request_id"])) {
			t.Errorf("logged %v", last)
		}
	}
	_, err := p.node().NodePublishVolume(t.Context(), publishRequest())
	check(err, codes.Unavailable, "NodePublishVolume", "cannot use")
	_, err = p.node().NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "/p"})
	check(err, codes.Internal, "NodeGetVolumeStats", "boom")
	n, err := p.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: "snap-1"})
	if n != 1 {
		t.Errorf("%d messages", n)
	}
	check(err, codes.Internal, "GetMetadataAllocated", "boom in a stream")
	if strings.Contains(book.String(), "f1eld-s3cret") {
		t.Errorf("the log has the secret: %s", book)
	}
	p.probe()
}

func TestLog(t *testing.T) {
	book := &logBook{}
	echo := func(r *csi.NodePublishVolumeRequest) error {
		return status.Errorf(codes.NotFound, "no share for %v, %v, %v", r.GetSecrets(), r.GetVolumeContext(), r.GetVolumeCapability().GetMount().GetMountFlags())
	}
	fail := false
	p := serve(t, csiserver.WithLogger(book.logger(slog.LevelDebug)), csiserver.WithRedactedKeys("mine"),
		csiserver.WithNode(&node{publish: func(ctx context.Context, r *csi.NodePublishVolumeRequest) error {
			if fail {
				return echo(r)
			}
			return nil
		}}),
		csiserver.WithSnapshotMetadata(&metadata{allocated: func(r *csi.GetMetadataAllocatedRequest, s csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
			return status.Errorf(codes.NotFound, "no snapshot for %v", r.GetSecrets())
		}}))

	if _, err := p.node().NodePublishVolume(t.Context(), publishRequest()); err != nil {
		t.Fatal(err)
	}
	fail = true
	_, err := p.node().NodePublishVolume(t.Context(), publishRequest())
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "share:backup") || !strings.Contains(err.Error(), "***stripped***") {
		t.Error(err)
	}
	_, streamErr := p.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: "snap-1", Secrets: map[string]string{"k": "f1eld-s3cret"}})
	p.probe()
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	for _, s := range planted {
		if strings.Contains(book.String()+err.Error()+streamErr.Error(), s) {
			t.Errorf("%s leaks: %s\n%v\n%v", s, book, err, streamErr)
		}
	}

	started, finished := book.lines(t, "rpc started"), book.lines(t, "rpc finished")
	if len(started) != 4 || len(finished) != 4 {
		t.Fatalf("%d started, %d finished: %s", len(started), len(finished), book)
	}
	ids := map[any]bool{}
	for i, want := range []map[string]any{
		{"level": "INFO", "rpc": "NodePublishVolume", "code": "OK", "volume_id": "vol-1", "target_path": "/pods/1/mount"},
		{"level": "WARN", "rpc": "NodePublishVolume", "code": "NotFound", "volume_id": "vol-1", "target_path": "/pods/1/mount"},
		{"level": "WARN", "rpc": "GetMetadataAllocated", "code": "NotFound", "snapshot_id": "snap-1", "error": "no snapshot for map[k:***stripped***]"},
		{"level": "DEBUG", "rpc": "Probe", "code": "OK"},
	} {
		for k, v := range want {
			if finished[i][k] != v {
				t.Errorf("line %d: %s is %v, want %v", i, k, finished[i][k], v)
			}
		}
		if started[i]["request_id"] != finished[i]["request_id"] || finished[i]["request_id"] == nil || finished[i]["duration"] == nil {
			t.Errorf("line %d: %v, %v", i, started[i], finished[i])
		}
		ids[finished[i]["request_id"]] = true
	}
	if len(ids) != 4 {
		t.Errorf("request ids repeat: %v", ids)
	}
	request, _ := started[0]["request"].(map[string]any)
	if request["secrets"] != "***stripped***" || request["volume_id"] != "vol-1" {
		t.Errorf("request %v", request)
	}
}

func TestLogAtInfoHasNoRequests(t *testing.T) {
	book := &logBook{}
	p := serve(t, csiserver.WithLogger(book.logger(slog.LevelInfo)),
		csiserver.WithNode(&node{unpublish: func(context.Context, *csi.NodeUnpublishVolumeRequest) error { return nil }}))
	p.probe()
	if _, err := p.node().NodeUnpublishVolume(t.Context(), unpublishRequest); err != nil {
		t.Fatal(err)
	}
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	if n := len(book.lines(t, "rpc started")); n != 0 {
		t.Errorf("%d calls logged at debug level", n)
	}
	if f := book.lines(t, "rpc finished"); len(f) != 1 || f[0]["rpc"] != "NodeUnpublishVolume" {
		t.Errorf("finished: %v", f)
	}
}

func TestRequestID(t *testing.T) {
	if id := csiserver.RequestID(t.Context()); id != "" {
		t.Errorf("got %q", id)
	}
	var inHandler, inInterceptor, inStream string
	p := serve(t,
		csiserver.WithNode(&node{unpublish: func(ctx context.Context, _ *csi.NodeUnpublishVolumeRequest) error {
			inHandler = csiserver.RequestID(ctx)
			return nil
		}}),
		csiserver.WithInterceptors(csiserver.Interceptor{Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			inInterceptor = csiserver.RequestID(ctx)
			return next(ctx, req)
		}}),
		csiserver.WithSnapshotMetadata(&metadata{allocated: func(_ *csi.GetMetadataAllocatedRequest, s csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
			inStream = csiserver.RequestID(s.Context())
			return nil
		}}),
		csiserver.WithInterceptors(csiserver.Interceptor{Stream: func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if csiserver.RequestID(ss.Context()) == "" {
				t.Error("no id in the stream interceptor")
			}
			return next(srv, ss)
		}}))
	if _, err := p.node().NodeUnpublishVolume(t.Context(), unpublishRequest); err != nil {
		t.Fatal(err)
	}
	p.allocated(&csi.GetMetadataAllocatedRequest{SnapshotId: "s"})
	if inHandler == "" || inHandler != inInterceptor || inStream == "" || inStream == inHandler {
		t.Errorf("ids %q, %q, %q", inHandler, inInterceptor, inStream)
	}
}
