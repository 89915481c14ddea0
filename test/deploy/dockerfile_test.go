package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	stageLine = regexp.MustCompile(`(?m)^FROM .* AS (\S+)$`)
	userLine  = regexp.MustCompile(`(?m)^USER (\d+)`)
)

// What runs in the overlays are targets of the driver's Dockerfile, and a container
// that is not root is a target that is not, and the other way round.
func TestDockerfile(t *testing.T) {
	for _, d := range drivers {
		t.Run(d.name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(d.dir(), "..", "Dockerfile"))
			if err != nil {
				t.Fatal(err)
			}
			user := map[string]string{} // of each target, "" is root
			for _, m := range stageLine.FindAllSubmatchIndex(text, -1) {
				stage := string(text[m[1]:])
				if next := stageLine.FindStringIndex(stage); next != nil {
					stage = stage[:next[0]]
				}
				name := string(text[m[2]:m[3]])
				user[name] = ""
				if u := userLine.FindStringSubmatch(stage); u != nil {
					user[name] = u[1]
				}
			}
			tree := d.tree(t)
			used := map[string]bool{}
			for _, overlay := range d.overlays(t) {
				objects, err := tree.render(overlay, nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, w := range newCluster(d, objects).workloads {
					target := strings.TrimPrefix(w.driver.image, d.name+"-") // one that is for all has the driver's name
					used[target] = true
					imageUser, known := user[target]
					if !known {
						t.Errorf("%s: image %s is no target of the Dockerfile", w.of(w.driver), w.driver.Image)
					}
					if u := w.user(w.driver); u != nil && strings.TrimPrefix(fmt.Sprint(*u), "0") != imageUser {
						t.Errorf("%s: runs as %d, its image as %q", w.of(w.driver), *u, imageUser)
					}
				}
			}
			for target := range user {
				if target != "build" && !used[target] {
					t.Errorf("no overlay uses the target %s", target)
				}
			}
		})
	}
}
