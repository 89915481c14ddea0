package deploy

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	sidecarImage = regexp.MustCompile(`registry\.k8s\.io/sig-storage/([a-z-]+):([^\s"']+)`)
	listDate     = regexp.MustCompile(`as of 20\d\d-\d\d-\d\d\.`)
)

// Every tag of a sidecar's image in deploy/, the chart's values included, and every version that
// the rules are for, is one that was released.
func TestReleases(t *testing.T) {
	text, err := os.ReadFile("releases.txt")
	if err != nil {
		t.Fatal(err)
	}
	if !listDate.Match(text) {
		t.Error("releases.txt does not say of which date it is")
	}
	released := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] != "#" {
			for _, f := range fields[1:] {
				if strings.HasPrefix(f, "v") && strings.Count(f, ".") == 2 {
					released[fields[0]] = append(released[fields[0]], f)
				}
			}
		}
	}
	check := func(where, image, tag string) {
		if !slices.Contains(released[image], tag) {
			t.Errorf("%s: %s:%s is not among the releases %v", where, image, tag, released[image])
		}
	}
	for image, s := range sidecars {
		check("sidecars.go", image, s.version)
	}
	for _, d := range drivers {
		found := 0
		err := filepath.WalkDir(d.dir(), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range sidecarImage.FindAllSubmatch(text, -1) {
				check(path, string(m[1]), string(m[2]))
				found++
			}
			if err == nil && bytes.Contains(text, []byte("k8s.gcr.io")) {
				t.Errorf("%s: k8s.gcr.io is frozen: use registry.k8s.io", path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range d.chart(t).release(t, d.name, d.chart(t).valuesOf(t, d.overlays(t)[0])).objects {
			if pod := podOf(o); pod != nil {
				for _, c := range pod.Containers {
					if m := sidecarImage.FindStringSubmatch(c.Image); m != nil {
						check("the chart's values", m[1], m[2])
						found++
					}
				}
			}
		}
		if found < 10 {
			t.Errorf("%s: found only %d images of sidecars", d.name, found)
		}
	}
}
