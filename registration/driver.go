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

// driverTimeout bounds each question to the driver. It is asked again.
const driverTimeout = 2 * time.Second

// driverReady returns nil once kubelet may be told of the driver: its Identity
// service answers under the right name, Probe does not say that it is not ready,
// and neither does Config.Ready.
func (r *Registrar) driverReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, driverTimeout)
	defer cancel()
	if err := identityReady(ctx, r.cfg.Endpoint, r.cfg.DriverName); err != nil {
		return fmt.Errorf("waiting for the driver at %s: %w", r.cfg.Endpoint, err)
	}
	if r.cfg.Ready == nil {
		return nil
	}
	if err := r.askReady(ctx); err != nil {
		return fmt.Errorf("waiting for the driver: %w", err)
	}
	return nil
}

// askReady asks Config.Ready. One call that does not come back, as from a dead file
// system, is enough: it is waited for again, and holds up nothing else.
func (r *Registrar) askReady(ctx context.Context) error {
	if r.asking == nil {
		answer := make(chan error, 1)
		r.asking = answer
		go func() {
			ready, err := r.cfg.Ready(ctx)
			if err == nil && !ready {
				err = errors.New("not ready")
			}
			answer <- err
		}()
	}
	select {
	case err := <-r.asking:
		r.asking = nil
		return err
	case <-ctx.Done():
		return errors.New("still waiting for Ready to return")
	}
}

func identityReady(ctx context.Context, endpoint, name string) error {
	// A client of its own each time: one that has failed waits longer and longer.
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
		return fmt.Errorf("it calls itself %q, and kubelet would be told of %q: make the two the same", info.GetName(), name)
	}
	probe, err := identity.Probe(ctx, &csi.ProbeRequest{})
	switch {
	case status.Code(err) == codes.Unimplemented: // it cannot tell
		return nil
	case err != nil:
		return fmt.Errorf("call Probe: %w", err)
	case probe.GetReady() != nil && !probe.GetReady().GetValue(): // absent means ready
		return errors.New("not ready, says Probe")
	}
	return nil
}
