//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/csikit/csikit/hack/images"
)

// suiteImages are the images of the suite's pods, in the version of build/suite.mod, and what
// each is made of: with volumes, the tests use a shell, the usual commands, and agnhost.
var suiteImages = map[string]string{
	"registry.k8s.io/e2e-test-images/busybox:1.37.0-1":        "busybox",
	"registry.k8s.io/e2e-test-images/agnhost:2.63.0":          "agnhost",
	"registry.k8s.io/e2e-test-images/nginx:1.15-4":            "busybox",
	"registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0": "gnu",
}

// addSuite adds the images of the suite.
func addSuite(ctx context.Context, cache string, busybox images.Tree, add func(name string, files images.Tree, command ...string) error) error {
	program, err := exec.LookPath("agnhost")
	if err != nil {
		return err
	}
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	agnhost := maps.Clone(busybox)
	agnhost["agnhost"] = images.File{Mode: 0o755, Data: data}
	gnu, err := withDD(ctx, cache, busybox)
	if err != nil {
		return err
	}
	for name, kind := range suiteImages {
		switch kind {
		case "agnhost":
			err = add(name, agnhost, "/agnhost", "pause")
		case "gnu":
			err = add(name, gnu, "sh")
		default:
			err = add(name, busybox, "sh")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// withDD replaces busybox's dd by that of coreutils, which has oflag=nocache, and its shell,
// which does not look for another dd, by dash.
func withDD(ctx context.Context, cache string, busybox images.Tree) (images.Tree, error) {
	root, err := debianRoot(ctx, cache, "coreutils", "dash", "libc6")
	if err != nil {
		return nil, err
	}
	files := maps.Clone(busybox)
	files["bin/sh"] = images.File{Link: "dash"}
	for _, pattern := range []string{"bin/dd", "bin/dash", "lib/*/libc.so.6", "lib*/ld-linux*.so.*"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) == 0 {
			return nil, fmt.Errorf("coreutils, dash and libc6 have no %s: %w", pattern, err)
		}
		for _, name := range found {
			data, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			files[strings.TrimPrefix(name, root+"/")] = images.File{Mode: 0o755, Data: data}
		}
	}
	return files, nil
}
