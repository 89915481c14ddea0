//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/csikit/csikit/hack/images"
)

// A sidecar is an image that consists of one static program, whose tag is the version of
// a module in build/sidecars.mod.
type sidecar struct{ program, module string }

const kubernetesCSI = "github.com/kubernetes-csi/"

var sidecars = []sidecar{
	{"csi-attacher", kubernetesCSI + "external-attacher/v4"},
	{"csi-provisioner", kubernetesCSI + "external-provisioner/v6"},
	{"csi-resizer", kubernetesCSI + "external-resizer/v2"},
	{"csi-snapshotter", kubernetesCSI + "external-snapshotter/v8"},
	{"snapshot-controller", kubernetesCSI + "external-snapshotter/v8"},
}

// standins are images without a module, with the versions that the manifests name.
var standins = []string{
	pauseImage,
	"registry.k8s.io/sig-storage/csi-node-driver-registrar:v2.17.0",
	"registry.k8s.io/sig-storage/livenessprobe:v2.19.0",
}

const busyboxImage = "docker.io/library/busybox:1.37"

// drivers and the targets of their Dockerfiles. One that is all of a driver has its name.
var drivers = map[string][]string{
	"blockdriver": {"controller", "node"},
	"nfsdriver":   {"nfsdriver"},
}

// pushed are the names under which a reader of README.md has pushed an image.
var pushed = map[string]string{"nfsdriver": "registry.example.com/nfsdriver:v1.0.0"}

func driverImage(driver, target string) string {
	if target == driver {
		return driver + ":dev"
	}
	return driver + "-" + target + ":dev"
}

// imageNames returns the full names of the images that makeImages makes.
func imageNames(m modFile) map[string]bool {
	names := map[string]bool{busyboxImage: true}
	for _, s := range sidecars {
		names[s.image(m)] = true
	}
	for _, name := range standins {
		names[name] = true
	}
	for driver, targets := range drivers {
		for _, target := range targets {
			names[images.Reference(driverImage(driver, target))] = true
		}
		if name := pushed[driver]; name != "" {
			names[name] = true
		}
	}
	return names
}

func (s sidecar) image(m modFile) string {
	return "registry.k8s.io/sig-storage/" + s.program + ":" + m.versionOf(s.module)
}

// makeImages writes an archive with the images of everything that the manifests name, and
// returns their names; if scenarios need them, those of the suite, and of an earlier commit.
func makeImages(ctx context.Context, c config, dir, output, programs string) (named map[string]bool, previous previousDriver, err error) {
	say("making the images")
	now := time.Now()
	a, err := images.Create(output, now)
	if err != nil {
		return nil, previous, err
	}
	add := func(name string, files images.Tree, command ...string) error {
		layer, err := files.Layer(now)
		if err == nil {
			_, err = a.Add(name, images.Image{Architecture: runtime.GOARCH, Layers: [][]byte{layer}, Entrypoint: command[:1], Command: command[1:]})
		}
		return err
	}
	addProgram := func(name, program, file string) error {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return add(name, images.Tree{program: {Mode: 0o755, Data: data}}, "/"+program)
	}

	m, err := buildModule{name: "sidecars"}.parse(ctx)
	if err != nil {
		return nil, previous, err
	}
	for _, s := range sidecars {
		path, err := exec.LookPath(s.program)
		if err != nil {
			return nil, previous, err
		}
		if err := addProgram(s.image(m), s.program, path); err != nil {
			return nil, previous, err
		}
	}
	standin := filepath.Join(dir, "standin")
	if err := buildOurs(ctx, "standin", "-s -w", standin); err != nil {
		return nil, previous, err
	}
	for _, name := range standins {
		program, _, _ := strings.Cut(name[strings.LastIndexByte(name, '/')+1:], ":")
		if err := addProgram(name, program, standin); err != nil {
			return nil, previous, err
		}
	}
	busybox := filepath.Join(programs, "bin/busybox")
	applets, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return nil, previous, err
	}
	data, err := os.ReadFile(busybox)
	if err != nil {
		return nil, previous, err
	}
	files := images.Tree{}
	for _, applet := range strings.Fields(string(applets)) {
		files["bin/"+applet] = images.File{Link: "busybox"}
	}
	files["bin/busybox"] = images.File{Mode: 0o755, Data: data}
	if err := add(busyboxImage, files, "sh"); err != nil {
		return nil, previous, err
	}

	b := images.Builder{Root: "../..", Cache: c.cache, Version: "dev", At: now, Current: true, Log: say}
	for driver, targets := range drivers {
		all, err := b.Images(ctx, driver, runtime.GOARCH)
		if err != nil {
			return nil, previous, err
		}
		for _, i := range all {
			if !slices.ContainsFunc(targets, func(target string) bool { return driverImage(driver, target) == i.Name+":dev" }) {
				return nil, previous, fmt.Errorf("%s: add the target of %s to images.go", driver, i.Name)
			}
			if _, err := a.Add(i.Name+":dev", i); err != nil {
				return nil, previous, err
			}
			if name := pushed[i.Name]; name != "" {
				if _, err := a.Add(name, i); err != nil {
					return nil, previous, err
				}
			}
		}
	}
	if c.withSuite() {
		if err := addSuite(ctx, c.cache, files, add); err != nil {
			return nil, previous, err
		}
	}
	if c.withPrevious() {
		if previous, err = addPrevious(ctx, c.cache, dir, a); err != nil {
			return nil, previous, err
		}
	}
	return imageNames(m), previous, a.Close()
}

// checkImages compares the images that manifests name with those in the archive: with
// another tag, pods would wait for a registry.
func checkImages(manifests string, named map[string]bool) error {
	var missing error
	for line := range strings.Lines(manifests) {
		f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "- "))
		if len(f) == 2 && f[0] == "image:" && !named[images.Reference(f[1])] {
			missing = errors.Join(missing, fmt.Errorf("no image %s: set the version in test/cluster/build/sidecars.mod, or in images.go", f[1]))
		}
	}
	return missing
}
