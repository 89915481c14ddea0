package driver

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/csikit/csikit/csiserver"
	"github.com/csikit/csikit/nodelifecycle"
)

func init() {
	besideServer = append(besideServer, removeTaint)
	commands["pre-stop"] = preStop
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

// preStop waits until the volumes of a drained node are detached, within -timeout. On other
// nodes it returns immediately. kubelet runs it before it sends SIGTERM, so that the driver can
// still unmount. What it prints goes to kubelet's event, if it fails.
func preStop(ctx context.Context, args []string, getenv func(string) string) error {
	fs := flag.NewFlagSet(program+" pre-stop", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // errors are printed once, by main
	nodeID := fs.String("node-id", getenv("NODE_NAME"), "")
	name := fs.String("driver-name", defaultName, "")
	timeout := fs.Duration("timeout", time.Minute, "")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) || err == nil && fs.NArg() > 0 {
		return fmt.Errorf("want %s pre-stop [-node-id NODE] [-driver-name NAME] [-timeout DURATION]", program)
	} else if err != nil {
		return err
	}
	c, err := nodelifecycle.InCluster(*nodeID, *name)
	if err != nil {
		return err
	}
	// The log of a hook is not kept. That of the container is what its first process writes.
	if out, err := os.OpenFile("/proc/1/fd/2", os.O_WRONLY|os.O_APPEND, 0); err == nil {
		defer out.Close()
		c.Logger = slog.New(slog.NewJSONHandler(out, nil))
	}
	n, err := nodelifecycle.New(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	return n.WaitForDetach(ctx)
}
