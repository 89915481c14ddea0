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

// driverTimeout bounds each check of the driver, which is retried.
const driverTimeout = 2 * time.Second

// driverReady returns nil once the driver may be registered: its Identity
// service answers with the right name, and neither Probe nor Config.Ready reports
// that it is not ready.
func (r *Registrar) driverReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, driverTimeout)
	defer cancel()
	if err := identityReady(ctx, r.cfg.Endpoint, r.cfg.DriverName); err != nil {
		return fmt.Errorf("waiting for the driver at %s: %w", r.cfg.Endpoint, err)
	}
	if r.cfg.Ready == nil {
		return nil
	}
	if err := r.callReady(ctx); err != nil {
		return fmt.Errorf("waiting for the driver: %w", err)
	}
	return nil
}

// callReady calls Config.Ready. If a call hangs, for instance on a stale mount, no
// second one is started: the next callReady waits for the same call.
func (r *Registrar) callReady(ctx context.Context) error {
	if r.readyResult == nil {
		answer := make(chan error, 1)
		r.readyResult = answer
		go func() {
			ready, err := r.cfg.Ready(ctx)
			if err == nil && !ready {
				err = errors.New("not ready")
			}
			answer <- err
		}()
	}
	select {
	case err := <-r.readyResult:
		r.readyResult = nil
		return err
	case <-ctx.Done():
		return errors.New("still waiting for Ready to return")
	}
}

func identityReady(ctx context.Context, endpoint, name string) error {
	// A new client each time, because one that has failed backs off.
	client, err := grpc.NewClient("passthrough:///csi",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", endpoint)
		}))
	if err != nil {
		return err
	}
	defer client.Close()
	identity := csi.NewIdentityClient(client)
	info, err := identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return fmt.Errorf("call GetPluginInfo: %w", err)
	}
	if info.GetName() != name {
		return fmt.Errorf("GetPluginInfo returns the name %q, but Config.DriverName is %q: they must be equal", info.GetName(), name)
	}
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
}
