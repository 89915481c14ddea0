package csiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
)

const (
	defaultDrainTimeout = 20 * time.Second
	// unwindTimeout is what aborted calls get to notice that their context ended
	// and to undo what they began, before Serve returns and the process exits.
	unwindTimeout = time.Second
	// handshakeTimeout bounds a client that connects and sends nothing, for which gRPC
	// waits even in a hard stop, by default for two minutes. A gRPC client waits as
	// long: 5 seconds refused half of a thousand that connected to a starved machine
	// at the same time.
	handshakeTimeout = 20 * time.Second
	// maxConcurrentStreams bounds the calls of one connection; a client keeps further ones
	// back. Sidecars have a hundred workers, and kubelet a connection for each call.
	maxConcurrentStreams = 1024
)

// A Server serves a CSI plugin. Create one with [New].
type Server struct {
	config
	name               string
	log                *callLog
	builtin            []Interceptor       // the outermost first
	capabilityWarnings []csispec.Violation // for Serve to log
	served             atomic.Bool
	addr               atomic.Pointer[net.Addr] // while serving; for Health
}

// New returns a server for the services that opts set and an Identity service.
// It calls each service once for its capabilities, and fails if a sentence of the
// specification forbids them, see [WithCapabilityValidation], or if info is not valid;
// the error, an [*Error], then wraps a [*csispec.Violations]. It starts nothing.
func New(info Info, opts ...Option) (*Server, error) {
	s := &Server{name: info.Name}
	s.drainTimeout = defaultDrainTimeout
	s.capabilityValidation = ValidationEnforce
	s.interceptorConfig = defaultInterceptorConfig()
	for _, o := range opts {
		o.apply(&s.config)
	}
	if err := s.complete(info); err != nil {
		return nil, &Error{Op: "new", Object: fmt.Sprintf("plugin %q", info.Name), Err: err}
	}
	return s, nil
}

// complete checks the options and fills in defaults.
func (s *Server) complete(info Info) error {
	if err := errors.Join(append(s.errs, csispec.Validate(info.response()))...); err != nil {
		return err
	}
	caps, err := s.capabilities(context.Background(), info)
	if err != nil {
		return err
	}
	if err := s.validateCapabilities(caps); err != nil {
		return err
	}
	s.logger = orDiscard(s.logger)
	if s.identity == nil {
		info.Manifest = maps.Clone(info.Manifest)
		s.identity = &identity{info: info, capabilities: caps, ready: s.ready}
	}
	s.validation = append(s.validation, csispec.WithCapabilities(caps))
	return s.buildInterceptors()
}

// validateCapabilities refuses what the specification forbids, in ValidationEnforce,
// and keeps the rest for Serve to log.
func (s *Server) validateCapabilities(caps csispec.Capabilities) error {
	if s.capabilityValidation == ValidationOff {
		return nil
	}
	var forbidden []csispec.Violation
	if v, ok := errors.AsType[*csispec.Violations](csispec.CheckCapabilities(caps)); ok {
		forbidden = v.All
	}
	noCalls, calls := s.checkCalls(caps)
	forbidden = append(forbidden, noCalls...)
	s.capabilityWarnings = append(csispec.CapabilityWarnings(caps), calls...)
	if s.capabilityValidation == ValidationWarn {
		s.capabilityWarnings = append(forbidden, s.capabilityWarnings...)
		return nil
	}
	if len(forbidden) == 0 {
		return nil
	}
	return &csispec.Violations{Subject: "capabilities", All: forbidden}
}

func (s *Server) logCapabilityWarnings(ctx context.Context) {
	for _, w := range s.capabilityWarnings {
		s.logger.LogAttrs(ctx, slog.LevelWarn, "capabilities contradict each other or the RPCs that are implemented",
			slog.String("capability", w.Field), slog.String("rule", w.Rule), slog.String("error", w.Text))
	}
}

func (s *Server) buildInterceptors() error {
	s.log = newCallLog(s.logger, s.interceptorConfig)
	s.builtin = []Interceptor{RequestIDs(), s.log.interceptor()}
	if s.meters != nil {
		metrics, err := Metrics(s.meters)
		if err != nil {
			return err
		}
		s.builtin = append(s.builtin, metrics)
	}
	s.builtin = append(s.builtin, statusNormalization(s.interceptorConfig), newRecovery(s.logger, s.interceptorConfig), validation(s.logger, s.interceptorConfig))
	if len(s.limits) > 0 {
		limits, err := Limits(s.limits)
		if err != nil {
			return err
		}
		s.builtin = append(s.builtin, limits)
	}
	return nil
}

// Serve serves on lis until ctx ends. It then closes lis, which removes the
// socket file of a [Listener], refuses new calls and waits for those in flight,
// at most for the drain timeout. Calls that still run after that are aborted: their
// contexts end. The contexts of calls do not derive from ctx. [WithHealth] and
// [WithBackground] add what runs beside the server.
//
// While calls are drained, the path of the socket is free: another process may listen there
// and get calls for a volume that a call of this process still uses. The locks of a
// process do not exclude that. In a DaemonSet, keep maxSurge at 0, the default: then
// Kubernetes starts the next pod after this one has ended.
//
// Serve returns nil after a stop in which every call ended. Otherwise it returns an
// [*Error] that names up to 32 of the calls it aborted, or wraps the failure of lis, which may be
// that another plugin serves at the path of a [Listener] by now. A socket file that
// could not be removed is such a failure too, and harmless: the next [Listen] replaces
// the file.
//
// Serve returns within a second of the drain timeout even if a handler ignores its
// context, or another process delays the removal of the socket file; such a handler
// keeps its goroutine until it returns. The bound assumes that Close of a lis that is
// not a [Listener] does not block.
//
// A server serves once; a second Serve fails and does not touch its listener.
func (s *Server) Serve(ctx context.Context, lis net.Listener, opts ...ServeOption) error {
	endpoint := lis.Addr().Network() + "://" + lis.Addr().String()
	if !s.served.CompareAndSwap(false, true) {
		return &Error{Op: "serve", Object: endpoint, Err: errors.New("this server has served already: create another one")}
	}
	var beside serveConfig
	for _, o := range opts {
		o.applyServe(&beside)
	}
	err := errors.Join(beside.errs...)
	if err == nil {
		err = s.listenHealth(ctx, beside.health)
	}
	switch {
	case err == nil:
		err = s.serve(ctx, lis, endpoint, beside)
	case len(beside.errs) == 0 && ctx.Err() != nil: // stopped while it looked up a host name
		err = closeListener(lis)
	default:
		err = errors.Join(err, closeListener(lis))
	}
	if err != nil {
		return &Error{Op: "serve", Object: endpoint, Err: err}
	}
	s.logger.LogAttrs(ctx, slog.LevelInfo, "stopped", slog.String("endpoint", endpoint))
	return nil
}

func (s *Server) serve(ctx context.Context, lis net.Listener, endpoint string, beside serveConfig) error {
	if l, ok := lis.(*Listener); ok {
		l.setDefaultLogger(s.logger)
	}
	addr := lis.Addr()
	s.addr.Store(&addr)
	defer s.addr.Store(nil)
	s.logCapabilityWarnings(ctx)
	gs := s.grpcServer()
	served := make(chan error, 1)
	greeted := &handshakes{Listener: lis, silent: map[*greetedConn]bool{}}
	go func() { served <- gs.Serve(greeted) }()
	s.logger.LogAttrs(ctx, slog.LevelInfo, "serving", slog.String("plugin", s.name), slog.String("endpoint", endpoint))
	s.serveHealth(ctx, beside.health)
	besideCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := s.startBackground(besideCtx, beside.background)

	var failure error
	select {
	case <-ctx.Done():
		s.logger.LogAttrs(ctx, slog.LevelInfo, "stopping", slog.String("endpoint", endpoint), slog.Duration("drain_timeout", s.drainTimeout))
	case failure = <-served:
		served <- nil
		if ctx.Err() != nil {
			failure = nil // the caller closed lis to stop
		}
	}
	cancel()
	end := time.Now().Add(s.drainTimeout + unwindTimeout)
	aborted, err := s.shutdown(gs, greeted, served, end)
	failure = errors.Join(failure, err)
	if len(aborted) > 0 {
		failure = errors.Join(failure, fmt.Errorf("calls aborted after the drain timeout of %v: %s", s.drainTimeout, strings.Join(aborted, ", ")))
	}
	failure = errors.Join(failure, waitBackground(beside.background, results, end))
	stopHealth(beside.health, end)
	return failure
}

func (s *Server) grpcServer() *grpc.Server {
	var unary []grpc.UnaryServerInterceptor
	var stream []grpc.StreamServerInterceptor
	for _, i := range s.builtin {
		unary, stream = append(unary, i.Unary), append(stream, i.Stream)
	}
	opts := []grpc.ServerOption{
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxConcurrentStreams(maxConcurrentStreams),
		grpc.StatsHandler(arrivals{s.logger}),
		grpc.UnknownServiceHandler(unimplemented),
		// Saves calls the growing of a new stack. When all workers are busy or stuck,
		// calls get goroutines of their own as they would without. (Buffers of other
		// sizes, or shared, make no difference that can be measured.)
		grpc.NumStreamWorkers(uint32(runtime.GOMAXPROCS(0))),
		grpc.ChainUnaryInterceptor(append([]grpc.UnaryServerInterceptor{chain(unary)}, s.unary...)...),
		grpc.ChainStreamInterceptor(append(stream, s.config.stream...)...),
	}
	if s.tracers != nil {
		opts = append(opts, grpc.StatsHandler(tracing(s.tracers)))
	}
	gs := grpc.NewServer(opts...)
	csi.RegisterIdentityServer(gs, s.identity)
	if s.controller != nil {
		csi.RegisterControllerServer(gs, s.controller)
	}
	if s.group != nil {
		csi.RegisterGroupControllerServer(gs, s.group)
	}
	if s.snapshotMetadata != nil {
		csi.RegisterSnapshotMetadataServer(gs, s.snapshotMetadata)
	}
	if s.node != nil {
		csi.RegisterNodeServer(gs, s.node)
	}
	return gs
}

// tracing is the only part of otelgrpc in use: its metrics have other names and
// bounds than those of Metrics, and its defaults are the process's.
func tracing(tp trace.TracerProvider) stats.Handler {
	return otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(tp),
		otelgrpc.WithMeterProvider(noop.NewMeterProvider()),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithFilter(func(c *stats.RPCTagInfo) bool { return shortName(c.FullMethodName) != "Probe" }),
	)
}
