package csiserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limit bounds the calls of one method.
type Limit struct {
	// Timeout bounds the context of the handler; with 0, or if it is earlier, the
	// caller's deadline applies. A handler that ignores its context is not interrupted.
	Timeout time.Duration
	// InFlight is how many calls may run concurrently; 0 is any number. Each method is
	// counted separately, so calls that change something never block read-only ones.
	// [Limits] refuses it for Probe.
	InFlight int
}

// Limits bounds calls by the names of their methods, as in NodeStageVolume. Calls
// above a limit fail immediately with UNAVAILABLE: every caller in Kubernetes
// retries it without taking it for a result. (RESOURCE_EXHAUSTED would move a pod to
// another node, and ABORTED indicate a call for the same volume.) The error names
// each limit that is invalid.
func Limits(limits map[string]Limit) (Interceptor, error) {
	methods := methodsOfCSI()
	gates := make(map[string]*limitGate, len(limits))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		l := limits[name]
		switch {
		case methods[name] == "":
			errs = append(errs, fmt.Errorf("limit of %s: CSI has no such method", name))
		case l.Timeout < 0 || l.InFlight < 0:
			errs = append(errs, fmt.Errorf("limit of %s: is negative", name))
		case name == "Probe" && l.InFlight > 0:
			errs = append(errs, errors.New("limit of Probe: a plugin whose probes are refused is restarted"))
		}
		gates[methods[name]] = &limitGate{Limit: l}
	}
	if err := errors.Join(errs...); err != nil {
		return Interceptor{}, err
	}
	return Interceptor{
		Unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			ctx, leave, err := gates[info.FullMethod].enter(ctx)
			if err != nil {
				return nil, err
			}
			defer leave()
			return next(ctx, req)
		},
		Stream: func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			ctx, leave, err := gates[info.FullMethod].enter(ss.Context())
			if err != nil {
				return err
			}
			defer leave()
			return next(srv, &stream{ServerStream: ss, ctx: ctx})
		},
	}, nil
}

// limitGate counts the calls of one method. A nil one has no limit.
type limitGate struct {
	Limit
	running atomic.Int64
}

func (g *limitGate) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	if g == nil {
		return ctx, func() {}, nil
	}
	if n := g.running.Add(1); g.InFlight > 0 && n > int64(g.InFlight) {
		g.running.Add(-1)
		return nil, nil, status.Errorf(codes.Unavailable, "%d such calls are running, which is the limit: retry later", g.InFlight)
	}
	cancel := func() {}
	if g.Timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, g.Timeout)
	}
	return ctx, func() {
		cancel()
		g.running.Add(-1)
	}, nil
}

// methodsOfCSI maps the names of all methods, which are unique in CSI, to the full ones.
func methodsOfCSI() map[string]string {
	all := map[string]string{}
	for _, s := range []grpc.ServiceDesc{
		csi.Identity_ServiceDesc, csi.Controller_ServiceDesc, csi.GroupController_ServiceDesc,
		csi.SnapshotMetadata_ServiceDesc, csi.Node_ServiceDesc,
	} {
		for _, m := range s.Methods {
			all[m.MethodName] = "/" + s.ServiceName + "/" + m.MethodName
		}
		for _, m := range s.Streams {
			all[m.StreamName] = "/" + s.ServiceName + "/" + m.StreamName
		}
	}
	return all
}
