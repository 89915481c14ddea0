package driver

import (
	"errors"

	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/registration"
)

func init() { besideServer = append(besideServer, register) }

// register registers the driver with kubelet, if -register is set.
func register(b *background) error {
	if b.cfg.register == "" {
		return nil
	}
	if b.cfg.mode == "controller" {
		return errors.New("-register is for the node plugin: kubelet does not use -mode controller")
	}
	r, err := registration.New(registration.Config{
		DriverName: b.cfg.driverName, Endpoint: b.cfg.endpoint, KubeletEndpoint: b.cfg.register, Dir: b.cfg.registry, Logger: b.log,
	})
	if err != nil {
		return err
	}
	b.registered = r.Check
	b.options = append(b.options, csiserver.WithBackground("registration", r.Serve))
	b.sections = append(b.sections, csiserver.ReadyCheck("registration", r.Check),
		csiserver.DebugTable("registration", func() []registration.Status { return []registration.Status{r.Status()} }))
	return nil
}
