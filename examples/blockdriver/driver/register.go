package driver

import (
	"errors"
	"log/slog"

	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/registration"
)

func init() { beside = append(beside, register) }

// register registers the driver with kubelet, if -register is set.
func register(cfg config, log *slog.Logger) ([]csiserver.ServeOption, []csiserver.HealthSection, error) {
	if cfg.register == "" {
		return nil, nil, nil
	}
	if cfg.mode == "controller" {
		return nil, nil, errors.New("-register is for the node plugin: kubelet does not use -mode controller")
	}
	r, err := registration.New(registration.Config{
		DriverName: cfg.driverName, Endpoint: cfg.endpoint, KubeletEndpoint: cfg.register, Dir: cfg.registry, Logger: log,
	})
	if err != nil {
		return nil, nil, err
	}
	return []csiserver.ServeOption{csiserver.WithBackground("registration", r.Serve)},
		[]csiserver.HealthSection{
			csiserver.ReadyCheck("registration", r.Check),
			csiserver.DebugTable("registration", func() []registration.Status { return []registration.Status{r.Status()} }),
		}, nil
}
