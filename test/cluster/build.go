//go:build linux

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A buildModule is a module in build/: NAME.mod lists, as tools, the programs that are
// built from it, with the versions and checksums of everything that they consist of.
type buildModule struct {
	name string
	tags string
	// version is the module whose version the programs report, by a variable that its own
	// release sets.
	version string
	// test is a directory with tests, which become a program of its name with ".test".
	test string
}

var (
	buildModules = []buildModule{
		{name: "kubernetes", version: "k8s.io/kubernetes"},
		{name: "sidecars"},
		{name: "containerd", tags: "no_btrfs,no_devmapper,no_zfs,no_aufs"},
	}
	helmModule  = buildModule{name: "helm"}
	suiteModule = buildModule{name: "suite", version: "k8s.io/kubernetes", test: "testdata/suite"}
)

type modFile struct {
	Require []struct{ Path, Version string }
	Tool    []struct{ Path string }
}

func (b buildModule) parse(ctx context.Context) (modFile, error) {
	var m modFile
	out, err := exec.CommandContext(ctx, "go", "mod", "edit", "-json", "build/"+b.name+".mod").Output()
	if err == nil {
		err = json.Unmarshal(out, &m)
	}
	return m, err
}

func (m modFile) versionOf(path string) string {
	for _, r := range m.Require {
		if r.Path == path {
			return r.Version
		}
	}
	return ""
}

// buildAll builds the programs of modules unless they are in the cache, and returns the
// directories with them.
func buildAll(ctx context.Context, cache string, modules []buildModule) (dirs []string, err error) {
	for _, b := range modules {
		dir, err := b.build(ctx, cache)
		if err != nil {
			return nil, fmt.Errorf("build/%s.mod: %w", b.name, err)
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

func (b buildModule) build(ctx context.Context, cache string) (string, error) {
	m, err := b.parse(ctx)
	if err != nil {
		return "", err
	}
	ldflags := "-s -w"
	if b.version != "" {
		v := m.versionOf(b.version)
		parts := strings.SplitN(strings.TrimPrefix(v, "v"), ".", 3)
		const pkg = " -X k8s.io/component-base/version."
		ldflags += pkg + "gitVersion=" + v + pkg + "gitMajor=" + parts[0] + pkg + "gitMinor=" + parts[1]
	}
	args := []string{"build", "-modfile=build/" + b.name + ".mod", "-trimpath", "-buildvcs=false", "-tags=" + b.tags, "-ldflags=" + ldflags}

	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version(), runtime.GOARCH, args)
	inputs := []string{"build/" + b.name + ".mod", "build/" + b.name + ".sum"}
	programs := m.programs()
	if b.test != "" {
		sources, err := filepath.Glob(b.test + "/*.go")
		if err != nil {
			return "", err
		}
		inputs = append(inputs, sources...)
		programs = append(programs, program{b.test, path.Base(b.test) + ".test"})
	}
	for _, name := range inputs {
		text, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		sum.Write(text)
	}
	dir := filepath.Join(cache, fmt.Sprintf("%s-%.8x", b.name, sum.Sum(nil)))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}

	start := time.Now()
	say("building %s: %d programs", b.name, len(programs))
	// Renamed when complete: an interrupted build is repeated, and Go's own cache makes that short.
	unfinished, err := os.MkdirTemp(cache, "unfinished")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(unfinished)
	for _, p := range programs { // one at a time: two links of programs of this size need more than 4 GiB
		command, pkg := args, p.pkg
		if p.pkg == b.test {
			command, pkg = slices.Concat([]string{"test", "-c", "-vet=off"}, args[1:]), "./"+p.pkg
		}
		cmd := exec.CommandContext(ctx, "go", slices.Concat(command, []string{"-o", filepath.Join(unfinished, p.name), pkg})...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
		}
		say("built %s after %.0f s", p.name, time.Since(start).Seconds())
	}
	old, _ := filepath.Glob(filepath.Join(cache, b.name+"-*"))
	for _, dir := range old {
		os.RemoveAll(dir)
	}
	if err := os.Chmod(unfinished, 0o755); err != nil {
		return "", err
	}
	return dir, os.Rename(unfinished, dir)
}

// A program of a module, and the package that it is built from.
type program struct{ pkg, name string }

// programs returns those that a module lists as tools, named by the last element of the
// package's path; etcd's is called server.
func (m modFile) programs() (programs []program) {
	for _, t := range m.Tool {
		name := path.Base(t.Path)
		if strings.HasPrefix(t.Path, "go.etcd.io/etcd/server/") {
			name = "etcd"
		}
		programs = append(programs, program{t.Path, name})
	}
	return programs
}

// buildOurs builds a program of this repository, from its module, into dir.
func buildOurs(ctx context.Context, module, ldflags, output string) error {
	cmd := exec.CommandContext(ctx, "go", "-C", module, "build", "-trimpath", "-buildvcs=false", "-ldflags", ldflags, "-o", output, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS="+cmp.Or(os.Getenv("GOFLAGS"), ""))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	return nil
}
