package driver

import (
	"context"
	"errors"
	"log/slog"

	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/nodelifecycle"
)

func init() {
	beside = append(beside, removeTaint)
}

// removeTaint removes the taint of -startup-taint once kubelet has registered the driver. It
// takes -node-id for the name of the Node object, as the manifests set it.
func removeTaint(cfg config, log *slog.Logger) ([]csiserver.ServeOption, []csiserver.HealthSection, error) {
	if cfg.startupTaint == "" {
		return nil, nil, nil
	}
	if cfg.mode == "controller" {
		return nil, nil, errors.New("-startup-taint is for the node plugin, and not for -mode controller")
	}
	c, err := nodelifecycle.InCluster(cfg.nodeID, cfg.driverName)
	if err != nil {
		return nil, nil, err
	}
	c.Logger = log
	n, err := nodelifecycle.New(c)
	if err != nil {
		return nil, nil, err
	}
	run := func(ctx context.Context) error { return n.RemoveTaint(ctx, cfg.startupTaint) }
	return []csiserver.ServeOption{csiserver.WithBackground("start-up taint", run)}, nil, nil
}
