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
	kindCSI       = "CSIPlugin" // the handler that kubelet gives the driver to
)

// handshakeTimeout bounds a client that connects and stays silent, for which gRPC
// waits even when it is stopped.
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
		r.asked++
		r.lastAsked = time.Now()
		r.askedAbout = r.offers
		r.mu.Unlock()
	}
	return r.info
}

// notified records kubelet's verdict. The answer to kubelet is always OK: on an
// error it would take out a driver that it has just registered.
func (r *Registrar) notified(s registrationStatus) {
	if s.registered {
		r.judged(Registered, nil)
		return
	}
	r.judged(Refused, fmt.Errorf("kubelet says: %s", s.err))
}
