//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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
			names[reference(driverImage(driver, target))] = true
		}
	}
	return names
}

func (s sidecar) image(m modFile) string {
	return "registry.k8s.io/sig-storage/" + s.program + ":" + m.versionOf(s.module)
}

// makeImages writes an archive with the images of everything that the manifests name, and
// returns their names. withSuite adds those of the suite.
func makeImages(ctx context.Context, cache, dir, output, programs string, withSuite bool) (map[string]bool, error) {
	say("making the images")
	a, err := createArchive(output)
	if err != nil {
		return nil, err
	}
	add := func(name, layer string, files, links map[string]string, more image) error {
		layer = filepath.Join(dir, layer+".layer")
		if err := layerOf(layer, files, links); err != nil {
			return err
		}
		defer os.Remove(layer)
		more.name = name
		more.layers = append(more.layers, layer)
		return a.add(more)
	}

	m, err := buildModule{name: "sidecars"}.parse(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range sidecars {
		path, err := exec.LookPath(s.program)
		if err != nil {
			return nil, err
		}
		err = add(s.image(m), s.program,
			map[string]string{s.program: path}, nil, image{entrypoint: []string{"/" + s.program}})
		if err != nil {
			return nil, err
		}
	}
	standin := filepath.Join(dir, "standin")
	if err := buildOurs(ctx, "standin", "-s -w", standin); err != nil {
		return nil, err
	}
	for _, name := range standins {
		program, _, _ := strings.Cut(name[strings.LastIndexByte(name, '/')+1:], ":")
		err := add(name, program, map[string]string{program: standin}, nil, image{entrypoint: []string{"/" + program}})
		if err != nil {
			return nil, err
		}
	}
	busybox := filepath.Join(programs, "bin/busybox")
	applets, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return nil, err
	}
	links := map[string]string{}
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" {
			links["bin/"+applet] = "busybox"
		}
	}
	// What images are made on top of: those of Debian by the target that they are of.
	bases := map[string]string{"busybox": filepath.Join(dir, "busybox.base")}
	if err := layerOf(bases["busybox"], map[string]string{"bin/busybox": busybox}, links); err != nil {
		return nil, err
	}
	if err := a.add(image{name: busyboxImage, layers: []string{bases["busybox"]}, entrypoint: []string{"sh"}}); err != nil {
		return nil, err
	}
	defer func() {
		for _, base := range bases {
			os.Remove(base)
		}
	}()

	for driver, targets := range drivers {
		source := filepath.Join("../../examples", driver)
		stages, err := readDockerfile(filepath.Join(source, "Dockerfile"))
		if err != nil {
			return nil, err
		}
		binary := filepath.Join(dir, driver+".binary")
		if err := buildOurs(ctx, source, "-s -w -buildid= -X github.com/csikit/csikit/examples/"+driver+"/driver.Version=dev", binary); err != nil {
			return nil, err
		}
		for _, s := range stages {
			if !slices.Contains(targets, s.name) {
				return nil, fmt.Errorf("%s: add the target %s to images.go", driver, s.name)
			}
			i := image{user: s.user, entrypoint: []string{s.entrypoint}}
			if !s.scratch {
				root, err := debianRoot(ctx, cache, true, s.packages...)
				if err != nil {
					return nil, err
				}
				bases[s.name] = filepath.Join(dir, s.name+".base")
				if err := layerOfDir(ctx, bases[s.name], root, s.removed); err != nil {
					return nil, err
				}
				i.layers = append(i.layers, bases[s.name])
			}
			err := add(driverImage(driver, s.name), driver+"-"+s.name, map[string]string{s.binary: binary}, nil, i)
			if err != nil {
				return nil, err
			}
		}
	}
	if withSuite {
		agnhost, err := exec.LookPath("agnhost")
		if err != nil {
			return nil, err
		}
		for name, base := range suiteImages {
			i := image{layers: []string{bases[base]}}
			files := map[string]string{}
			if strings.Contains(name, "/agnhost:") {
				i.entrypoint, i.command, files["agnhost"] = []string{"/agnhost"}, []string{"pause"}, agnhost
			}
			if err := add(name, "suite", files, nil, i); err != nil {
				return nil, err
			}
		}
	}
	return imageNames(m), a.close()
}

// checkImages compares the images that manifests name with those in the archive: with
// another tag, pods would wait for a registry.
func checkImages(manifests string, named map[string]bool) error {
	var missing error
	for line := range strings.Lines(manifests) {
		f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "- "))
		if len(f) == 2 && f[0] == "image:" && !named[reference(f[1])] {
			missing = errors.Join(missing, fmt.Errorf("no image %s: set the version in test/cluster/build/sidecars.mod, or in images.go", f[1]))
		}
	}
	return missing
}
