// Command nfsdriver is a CSI driver for network shares, assembled from csikit's
// packages: a directory on an NFS export for each volume, mounted into pods without
// staging. It is an example to run, read and copy; README.md describes what to
// change for storage of your own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/csikit/csikit/examples/nfsdriver/driver"
	"github.com/csikit/csikit/examples/nfsdriver/exportdir"
)

// provider is the storage that the driver serves: the line to change, with its import.
var provider = exportdir.New()

func main() {
	// The first signal drains, the second one kills, because after the first the default
	// action is restored.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop)
	err := driver.Run(ctx, provider, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "nfsdriver:", err)
		os.Exit(1)
	}
}
