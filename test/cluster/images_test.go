//go:build linux

package main

import (
	"os"
	"path/filepath"
	"testing"
)

// Every image that the manifests and samples of the examples name is made, in the version
// that they name.
func TestManifestImages(t *testing.T) {
	m, err := buildModule{name: "sidecars"}.parse(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	named := imageNames(m)
	for _, driver := range []string{"blockdriver", "nfsdriver"} {
		files := 0
		err := filepath.WalkDir(filepath.Join("../../examples", driver, "deploy"), func(path string, d os.DirEntry, err error) error {
			if err == nil && d.Name() == "snapshot-metadata" {
				return filepath.SkipDir // its sidecar is no module that the Go proxy has
			}
			if err != nil || filepath.Ext(path) != ".yaml" {
				return err
			}
			text, err := os.ReadFile(path)
			if err == nil {
				files++
				err = checkImages(string(text), named)
			}
			if err != nil {
				t.Errorf("%s: %v", path, err)
			}
			return nil
		})
		if err != nil || files == 0 {
			t.Errorf("%d files: %v", files, err)
		}
	}
	if checkImages("  image: busybox\n", named) == nil {
		t.Error("an image that is not made was not found")
	}
}
