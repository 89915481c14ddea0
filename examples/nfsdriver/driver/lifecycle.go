package driver

import (
	"context"
	"errors"

	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/nodelifecycle"
)

func init() {
	besideServer = append(besideServer, removeTaint)
}

// removeTaint removes the taint of -startup-taint once kubelet has registered the driver. It
// takes -node-id for the name of the Node object, as the manifests set it.
func removeTaint(b *background) error {
	if b.cfg.startupTaint == "" {
		return nil
	}
	if b.cfg.mode == "controller" {
		return errors.New("-startup-taint is for the node plugin, and not for -mode controller")
	}
	c, err := nodelifecycle.InCluster(b.cfg.nodeID, b.cfg.driverName)
	if err != nil {
		return err
	}
	c.Logger = b.log
	c.Registered = func(ctx context.Context) error { return b.registered(ctx) }
	n, err := nodelifecycle.New(c)
	if err != nil {
		return err
	}
	run := func(ctx context.Context) error { return n.RemoveTaint(ctx, b.cfg.startupTaint) }
	b.options = append(b.options, csiserver.WithBackground("start-up taint", run))
	return nil
}
