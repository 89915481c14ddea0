package registration

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

const (
	serviceName   = "pluginregistration.Registration"
	methodGetInfo = "/" + serviceName + "/GetInfo"
	kindCSI       = "CSIPlugin" // selects kubelet's handler
)

// handshakeTimeout bounds a client that connects and sends nothing: gRPC
// waits for it even when it is stopped.
const handshakeTimeout = time.Second

// serviceDesc is the service as kubelet calls it.
func (r *Registrar) serviceDesc() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: serviceName,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "GetInfo", Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				if err := decode(empty{}); err != nil {
					return nil, err
				}
				return r.getInfo(ctx), nil
			}},
			{MethodName: "NotifyRegistrationStatus", Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				var s registrationStatus
				if err := decode(&s); err != nil {
					return nil, err
				}
				r.notified(s)
				return empty{}, nil
			}},
		},
	}
}

func (r *Registrar) newServer() *grpc.Server {
	gs := grpc.NewServer(grpc.ForceServerCodecV2(codec{}), grpc.ConnectionTimeout(handshakeTimeout))
	gs.RegisterService(r.serviceDesc(), nil)
	return gs
}

// getInfo answers from memory: kubelet waits for one second.
func (r *Registrar) getInfo(ctx context.Context) encoded {
	if metadata.ValueFromIncomingContext(ctx, standbyKey) == nil {
		r.mu.Lock()
		r.getInfoCalls++
		r.lastGetInfo = time.Now()
		r.getInfoSocket = r.socketsCreated
		r.mu.Unlock()
	}
	return r.info
}

// notified records the status that kubelet reports. The response is always OK: on an
// error kubelet would deregister a driver that it has just registered.
func (r *Registrar) notified(s registrationStatus) {
	if s.registered {
		r.recordKubeletStatus(Registered, nil)
		return
	}
	r.recordKubeletStatus(Rejected, fmt.Errorf("kubelet reports: %s", s.err))
}
