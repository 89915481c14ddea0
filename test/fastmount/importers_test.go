package fastmount_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A driver as it is today, with fastmount in the place of mount.New.
const importer = `package main

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/nodeops/fastmount"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/exec"
)

type node struct {
	csi.UnimplementedNodeServer
	mounter *mount.SafeFormatAndMount
}

func main() {
	n := node{mounter: &mount.SafeFormatAndMount{Interface: fastmount.New(), Exec: exec.New()}}
	fmt.Println(n.mounter.IsMountPoint("/proc"))
}
`

// A driver that adds fastmount keeps the versions of the CSI spec and of mount-utils that
// it has, from mount-utils 0.28 on.
func TestImportersKeepTheirVersions(t *testing.T) {
	if _, err := os.Stat("importers_test.go"); err != nil {
		t.Skip("not run in the directory of the package, so the go command does not find the modules")
	}
	newest := strings.TrimSpace(goTool(t, ".", "list", "-m", "-f", "{{.Version}}", "k8s.io/mount-utils"))
	module, err := filepath.Abs("../../nodeops/fastmount")
	if err != nil {
		t.Fatal(err)
	}
	for _, utils := range []string{"v0.28.0", "v0.32.13", newest} {
		t.Run(utils, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			mod := fmt.Sprintf(`module example.com/driver

go 1.24.0

require (
	github.com/container-storage-interface/spec v1.12.0
	github.com/csikit/csikit/nodeops/fastmount v0.0.0
	k8s.io/mount-utils %s
)

replace github.com/csikit/csikit/nodeops/fastmount => %s
`, utils, module)
			for name, text := range map[string]string{"go.mod": mod, "main.go": importer} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			goTool(t, dir, "mod", "tidy")
			goTool(t, dir, "vet", ".", "github.com/csikit/csikit/nodeops/fastmount/...")
			got := goTool(t, dir, "list", "-m", "all")
			for _, want := range []string{"github.com/container-storage-interface/spec v1.12.0\n", "k8s.io/mount-utils " + utils + "\n"} {
				if !strings.Contains(got, want) {
					t.Errorf("%s is not among the modules:\n%s", strings.TrimSpace(want), got)
				}
			}
			if strings.Contains(got, "github.com/csikit/csikit v") {
				t.Error("the root module is required")
			}
		})
	}
}

// goTool runs the go command in a module and returns its output.
func goTool(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}
