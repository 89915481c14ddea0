// make writes the images of the examples' drivers: see "make images".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/csikit/csikit/hack/images"
)

var (
	drivers       = []string{"blockdriver", "nfsdriver"}
	architectures = []string{"amd64", "arm64"}
)

func main() {
	b := images.Builder{Log: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }}
	flag.StringVar(&b.Root, "root", ".", "the `directory` of the repository")
	flag.StringVar(&b.Cache, "cache", ".cache/images", "a `directory` for downloads")
	flag.StringVar(&b.Version, "version", "dev", "of the drivers, and the images' tag")
	output := flag.String("o", "bin/images", "the `directory` for the archives")
	epoch := flag.Int64("epoch", 0, "the time of all files in `seconds` since 1970: SOURCE_DATE_EPOCH")
	renew := flag.Bool("renew", false, "write the lists of Debian's packages instead")
	flag.Parse()
	b.At = time.Unix(*epoch, 0).UTC()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := func() error { return makeImages(ctx, &b, *output) }
	if *renew {
		run = func() error { return renewLists(ctx, &b) }
	}
	if err := errors.Join(os.MkdirAll(b.Cache, 0o755), run()); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func renewLists(ctx context.Context, b *images.Builder) error {
	for _, driver := range drivers {
		for _, arch := range architectures {
			if err := b.Renew(ctx, driver, arch); err != nil {
				return err
			}
		}
	}
	return nil
}

func makeImages(ctx context.Context, b *images.Builder, output string) error {
	if err := os.MkdirAll(output, 0o755); err != nil {
		return err
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "image\tarch\tMB\tdigest")
	for _, driver := range drivers {
		var names []string
		byName := map[string][]images.Image{}
		for _, arch := range architectures {
			b.Log("%s for %s", driver, arch)
			all, err := b.Images(ctx, driver, arch)
			if err != nil {
				return err
			}
			for _, i := range all {
				if byName[i.Name] == nil {
					names = append(names, i.Name)
				}
				byName[i.Name] = append(byName[i.Name], i)
			}
		}
		for _, name := range names {
			if err := write(output, name+":"+b.Version, byName[name], b.At, table); err != nil {
				return err
			}
		}
	}
	return table.Flush()
}

func write(output, name string, all []images.Image, at time.Time, table *tabwriter.Writer) error {
	file := filepath.Join(output, all[0].Name)
	a, err := images.Create(file+".tar", at)
	if err != nil {
		return err
	}
	digests, err := a.Add(name, all...)
	if err := errors.Join(err, a.Close()); err != nil {
		return err
	}
	for n, i := range all {
		fmt.Fprintf(table, "%s\t%s\t%.1f\t%s\n", name, i.Architecture, float64(size(i))/1e6, digests[n].Digest)
		if err := os.WriteFile(file+"."+i.Architecture+".cdx.json", i.SBOM, 0o644); err != nil {
			return err
		}
	}
	fmt.Fprintf(table, "%s\tboth\t\t%s\n", name, digests[len(all)].Digest)
	return nil
}

func size(i images.Image) (n int) {
	for _, l := range i.Layers {
		n += len(l)
	}
	return n
}
