package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A Builder makes the images of the drivers in examples/.
type Builder struct {
	Root    string    // of the repository
	Cache   string    // a directory for downloads
	Version string    // that the driver reports
	At      time.Time // of every file
	// Current takes the current version where Debian does not serve one in a list any more.
	// Otherwise that is an error.
	Current bool
	Log     func(format string, args ...any)
}

// Images returns those of one driver for one architecture, by the order in its Dockerfile. One
// that is all of a driver has the driver's name.
func (b *Builder) Images(ctx context.Context, driver, arch string) (images []Image, err error) {
	d, err := readDockerfile(b.dockerfile(driver))
	if err != nil {
		return nil, err
	}
	binary, err := b.compile(ctx, d, arch)
	if err != nil {
		return nil, err
	}
	for _, s := range d.stages {
		i := Image{Name: imageName(driver, s), Architecture: arch, User: s.user, Entrypoint: []string{s.entrypoint}}
		var packages []debianPackage
		if !s.scratch {
			tree, l, err := b.base(ctx, d.suite, i.Name, arch, s)
			if err != nil {
				return nil, fmt.Errorf("%s for %s: %w", i.Name, arch, err)
			}
			layer, err := tree.Layer(b.At)
			if err != nil {
				return nil, err
			}
			i.Layers, packages = append(i.Layers, layer), l.packages
		}
		layer, err := Tree{strings.TrimPrefix(s.binary, "/"): {Mode: 0o755, Data: binary}}.Layer(b.At)
		if err != nil {
			return nil, err
		}
		i.Layers = append(i.Layers, layer)
		if i.SBOM, err = b.sbom(i.Name, arch, d.suite, binary, packages); err != nil {
			return nil, err
		}
		images = append(images, i)
	}
	return images, nil
}

// Renew writes the lists of a driver's packages for one architecture by what Debian serves now.
func (b *Builder) Renew(ctx context.Context, driver, arch string) error {
	d, err := readDockerfile(b.dockerfile(driver))
	if err != nil {
		return err
	}
	for _, s := range d.stages {
		if s.scratch {
			continue
		}
		name := imageName(driver, s)
		b.Log("%s for %s: asking Debian", name, arch)
		_, l, err := b.current(ctx, d.suite, arch, s)
		if err != nil {
			return fmt.Errorf("%s for %s: %w", name, arch, err)
		}
		if err := l.write(b.list(name, arch)); err != nil {
			return err
		}
	}
	return nil
}

func (b *Builder) dockerfile(driver string) string {
	return filepath.Join(b.Root, "examples", driver, "Dockerfile")
}

func (b *Builder) list(name, arch string) string {
	return filepath.Join(b.Root, "hack/images/debian", name+"."+arch)
}

func imageName(driver string, s stage) string {
	if s.name == driver {
		return driver
	}
	return driver + "-" + s.name
}

// base returns the files of Debian for a stage.
func (b *Builder) base(ctx context.Context, suite, name, arch string, s stage) (Tree, list, error) {
	l, err := readList(b.list(name, arch))
	if err != nil {
		return nil, l, err
	}
	if !slices.Equal(l.wanted, s.wanted()) {
		return nil, l, fmt.Errorf("the list has %v, and the Dockerfile installs %v: %w", l.wanted, s.packages, errStale)
	}
	if err := b.download(ctx, l); err != nil {
		if b.Current && errors.Is(err, errNotServed) {
			b.Log("%s: %v", name, err)
			return b.current(ctx, suite, arch, s)
		}
		return nil, l, err
	}
	return b.selectFiles(ctx, l, arch, s.removed)
}

func (b *Builder) current(ctx context.Context, suite, arch string, s stage) (Tree, list, error) {
	l, err := b.resolve(ctx, suite, arch, s.wanted())
	if err != nil {
		return nil, l, err
	}
	return b.selectFiles(ctx, l, arch, s.removed)
}

func (s stage) wanted() []string { return append(slices.Clone(s.packages), baseFiles) }

// compile returns the driver's binary, as the Dockerfile has it.
func (b *Builder) compile(ctx context.Context, d dockerfile, arch string) ([]byte, error) {
	output, err := os.CreateTemp(b.Cache, "driver")
	if err != nil {
		return nil, err
	}
	output.Close()
	defer os.Remove(output.Name())
	cmd := exec.CommandContext(ctx, "go", "-C", filepath.Join(b.Root, d.module), "build", "-trimpath", "-buildvcs=false",
		"-ldflags", strings.ReplaceAll(d.ldflags, "$VERSION", b.Version), "-o", output.Name(), ".")
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN=go"+d.golang, "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0",
		"GOWORK=off", "GOFLAGS=", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	return os.ReadFile(output.Name())
}
