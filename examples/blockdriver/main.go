// Command blockdriver is a CSI driver for block storage, assembled from csikit's packages. It
// is an example to run, to read and to copy; README.md describes what to change for storage
// of your own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/csikit/csikit/examples/blockdriver/driver"
	"github.com/csikit/csikit/examples/blockdriver/filepool"
	"github.com/csikit/csikit/examples/blockdriver/storage"
)

var provider = filepool.New() // the storage: put yours here

func main() {
	// The first signal drains, the second one kills: after the first the default
	// action is back.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop)
	err := driver.Run(ctx, provider, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	if !errors.Is(err, storage.ErrReported) {
		fmt.Fprintln(os.Stderr, "blockdriver:", err)
	}
	os.Exit(1)
}
