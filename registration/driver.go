package registration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	// driverTimeout bounds each question to the driver. A probe may take its time, and one
	// that hangs may hold a thread of the driver: the next one waits for its end.
	driverTimeout = 30 * time.Second
	// answerNotice is how long a question may take before the Status says so.
	answerNotice = 2 * time.Second
)

// driverReady returns nil once the driver may be registered: its Identity
// service answers with the right name, and neither Probe nor Config.Ready reports
// that it is not ready.
//
// A check that has not ended, for instance because Config.Ready hangs on a stale mount,
// continues, and the next driverReady waits for it.
func (r *Registrar) driverReady(ctx context.Context) error {
	if r.driverAnswer == nil {
		answer := make(chan error, 1)
		r.driverAnswer = answer
		go func() { answer <- r.askDriver(ctx) }()
	}
	select {
	case err := <-r.driverAnswer:
		r.driverAnswer = nil
		return err
	case <-time.After(answerNotice):
		return fmt.Errorf("waiting for the driver at %s: still waiting for %s", r.cfg.Endpoint, r.asked())
	case <-ctx.Done():
		return ctx.Err()
	}
}

// askDriver asks the driver all questions, one after the other.
func (r *Registrar) askDriver(ctx context.Context) error {
	if err := r.identityReady(ctx); err != nil {
		return fmt.Errorf("waiting for the driver at %s: %w", r.cfg.Endpoint, err)
	}
	if r.cfg.Ready == nil {
		return nil
	}
	return r.ask(ctx, "Ready", func(ctx context.Context) error {
		ready, err := r.cfg.Ready(ctx)
		if err == nil && !ready {
			err = errors.New("not ready")
		}
		if err != nil {
			return fmt.Errorf("waiting for the driver: %w", err)
		}
		return nil
	})
}

// asked returns the question in flight. On a starved node there may be none after answerNotice.
func (r *Registrar) asked() string {
	if q := r.question.Load(); q != nil {
		return *q
	}
	return "the first question to be asked"
}

// ask asks one question, with a timeout of its own.
func (r *Registrar) ask(ctx context.Context, name string, question func(context.Context) error) error {
	what := name + " to return"
	r.question.Store(&what)
	ctx, cancel := context.WithTimeout(ctx, driverTimeout)
	defer cancel()
	return question(ctx)
}

func (r *Registrar) identityReady(ctx context.Context) error {
	// A new client each time, because one that has failed backs off.
	client, err := grpc.NewClient("passthrough:///csi",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", r.cfg.Endpoint)
		}))
	if err != nil {
		return err
	}
	defer client.Close()
	identity := csi.NewIdentityClient(client)
	err = r.ask(ctx, "GetPluginInfo", func(ctx context.Context) error {
		info, err := identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		switch {
		case err != nil:
			return fmt.Errorf("call GetPluginInfo: %w", err)
		case info.GetName() != r.cfg.DriverName:
			return fmt.Errorf("GetPluginInfo returns the name %q, but Config.DriverName is %q: they must be equal", info.GetName(), r.cfg.DriverName)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return r.ask(ctx, "Probe", func(ctx context.Context) error {
		probe, err := identity.Probe(ctx, &csi.ProbeRequest{})
		switch {
		case status.Code(err) == codes.Unimplemented:
			return nil
		case err != nil:
			return fmt.Errorf("call Probe: %w", err)
		case probe.GetReady() != nil && !probe.GetReady().GetValue(): // absent means ready
			return errors.New("not ready according to Probe")
		}
		return nil
	})
}
