package csikit

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference/import-cost.md")

const importCostPage = "docs/reference/import-cost.md"

// An importer is a driver's main package that uses some blocks. Its statements use what a
// driver would, so that the linker keeps it.
type importer struct {
	name    string
	imports []string // of csikit; a short name is a package of the root module
	body    string
}

var importers = []importer{
	{name: "none: only gRPC and CSI"},
	{"blocking", []string{"blocking"}, `_, _, _ = new(blocking.Group).Do(ctx, "", func() (any, error) { return nil, nil })`},
	{"csierr", []string{"csierr"}, `_ = csierr.CodeOf(csierr.Errorf("", "", "%w", csierr.NotFound))`},
	{"breaker", []string{"breaker"}, `g := new(breaker.Group); _ = g.Watch(ctx, breaker.Server{}, func(context.Context) error { return nil }); _ = g.Instrument(nil)`},
	{"loopdev", []string{"loopdev"}, `d, _ := loopdev.Attach(ctx, ""); _ = d.Detach(ctx)`},
	{"topology", []string{"topology"}, `_, _ = topology.Choose(nil, 0, nil)`},
	{"volumelock", []string{"volumelock"}, `opts = append(opts, grpc.ChainUnaryInterceptor(volumelock.Interceptor(new(volumelock.Table)).Unary))`},
	{"csispec", []string{"csispec"}, `_ = csispec.Validate(nil); _ = csispec.Redact(nil).String()`},
	{"csiserver", []string{"csiserver"}, csiserverUse},
	{"registration", []string{"registration"}, `r, _ := registration.New(registration.Config{}); _ = r.Serve(ctx)`},
	{"nodelifecycle", []string{"nodelifecycle"}, `n, _ := nodelifecycle.New(nodelifecycle.Config{}); _ = n.RemoveTaint(ctx, ""); _ = n.WaitForDetach(ctx)`},
	{"nodeops", []string{"nodeops"}, nodeopsUse},
	{"luks", []string{"luks"}, `m, _ := luks.New(luks.Config{}); _, _ = m.Open(ctx, luks.OpenRequest{})`},
	{"csiserver, volumelock, nodeops, topology", []string{"csiserver", "volumelock", "nodeops", "topology"},
		csiserverUse + "\n" + nodeopsUse + `
		_ = csiserver.WithInterceptors(volumelock.Interceptor(new(volumelock.Table)))
		_, _ = topology.Choose(nil, 0, nil)`},
	{"nodeops/fastmount, with k8s.io/mount-utils", []string{"nodeops/fastmount"}, `_ = fastmount.New().Mount("", "", "", nil)`},
	{"k8s.io/mount-utils without fastmount, to compare", []string{"k8s.io/mount-utils"}, `_ = mount.New("").Mount("", "", "", nil)`},
}

const (
	csiserverUse = `s, _ := csiserver.New(csiserver.Info{}); lis, _ := csiserver.Listen(""); _ = s.Serve(ctx, lis)`
	nodeopsUse   = `n, _ := nodeops.New(nodeops.Config{}); _ = n.StageFilesystem(ctx, nodeops.StageFilesystemRequest{})`
)

const importerMain = `package main

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
%s)

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
}

func main() {
	ctx := context.Background()
	_ = ctx
	var opts []grpc.ServerOption
	%s
	server := grpc.NewServer(opts...)
	csi.RegisterIdentityServer(server, driver{})
	csi.RegisterControllerServer(server, driver{})
	csi.RegisterNodeServer(server, driver{})
	_ = server.Serve(nil)
}
`

// What an importer pays stands in a committed table, so that a new dependency shows in
// review.
func TestImportCost(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("the sizes are of linux/amd64")
	}
	var table, added bytes.Buffer
	table.WriteString(importCostHead)
	added.WriteString(importCostModules)
	var bare int64
	var without []string
	for i, im := range importers {
		modules, packages, size := im.cost(t)
		if i == 0 {
			bare, without = size, modules
			fmt.Fprintf(&table, "| %s | %d | | %d | %s |\n", im.name, len(modules), packages, megabytes(size))
			continue
		}
		more := slices.DeleteFunc(modules, func(m string) bool { return slices.Contains(without, m) })
		fmt.Fprintf(&table, "| %s | %d | +%d | %d | +%s |\n", im.name, len(without)+len(more), len(more), packages, megabytes(size-bare))
		fmt.Fprintf(&added, "- %s: %s\n", im.name, strings.Join(more, ", "))
	}
	table.Write(added.Bytes())
	if *update {
		if err := os.WriteFile(importCostPage, table.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(importCostPage)
	if err != nil {
		t.Fatal(err)
	}
	got, page := strings.Split(table.String(), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(got), len(page)) {
		if i >= len(got) || i >= len(page) || !sameCost(got[i], page[i]) {
			t.Fatalf("%s differs. If the new cost is worth it: go test -run TestImportCost -update .\n%s", importCostPage, table.Bytes())
		}
	}
}

const importCostHead = `# What importing a block costs

Measured by TestImportCost on linux/amd64 with the Go version of go.mod: a driver's main
package that uses the block, compared with one that uses only gRPC and CSI.

- modules: lines of ` + "`go list -m all`" + `, which is what a dependency scanner lists;
- packages: of other modules and of the standard library that are compiled in;
- binary: of ` + "`go build -ldflags '-s -w'`" + `, and by how much it grows.

The examples, csi-test, k8s.io/mount-utils and the exporters of OpenTelemetry are required by
modules of their own, which no importer of a block gets.

| blocks | modules | added | packages | binary, MB |
|---|---:|---:|---:|---:|
`

const importCostModules = `
Which modules each one adds to the graph:

`

func megabytes(bytes int64) string { return fmt.Sprintf("%.2f", float64(bytes)/1e6) }

// sameCost compares two rows of the table. Patch releases of Go change sizes a little.
func sameCost(a, b string) bool {
	if a == b {
		return true
	}
	as, bs := strings.Split(a, "|"), strings.Split(b, "|")
	if len(as) != 7 || len(bs) != 7 {
		return false
	}
	size := func(cell string) float64 {
		f, err := strconv.ParseFloat(strings.TrimSpace(cell), 64)
		if err != nil {
			return -1000
		}
		return f
	}
	d := size(as[5]) - size(bs[5])
	return slices.Equal(as[:4], bs[:4]) && (strings.HasPrefix(as[1], " none") || as[4] == bs[4]) && -0.1 < d && d < 0.1
}

// cost makes a module of the importer and measures it.
func (im importer) cost(t *testing.T) (modules []string, packages int, size int64) {
	t.Helper()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	root, fastmount, utils := false, false, false
	var imports strings.Builder
	for _, path := range im.imports {
		switch path {
		case "k8s.io/mount-utils":
			utils = true
			fmt.Fprintf(&imports, "\tmount %q\n", path)
			continue
		case "nodeops/fastmount":
			fastmount = true
		default:
			root = true
		}
		fmt.Fprintf(&imports, "\t%q\n", "github.com/csikit/csikit/"+path)
	}
	version := func(module string) string {
		return strings.TrimSpace(string(goOutput(t, ".", "list", "-m", "-f", "{{.Version}}", module)))
	}
	mod := "module example.com/driver\n\ngo 1.26.0\n"
	need := func(path, version, replace string) {
		mod += fmt.Sprintf("\nrequire %s %s\n", path, version)
		if replace != "" {
			mod += fmt.Sprintf("replace %s => %s\n", path, replace)
		}
	}
	for _, path := range []string{"github.com/container-storage-interface/spec", "google.golang.org/grpc"} {
		need(path, version(path), "")
	}
	if root {
		need("github.com/csikit/csikit", "v0.0.0", here)
	}
	if fastmount {
		need("github.com/csikit/csikit/nodeops/fastmount", "v0.0.0", filepath.Join(here, "nodeops/fastmount"))
	}
	if utils {
		need("k8s.io/mount-utils", "v0.28.0", "") // what fastmount requires
	}
	files := map[string]string{"go.mod": mod, "main.go": fmt.Sprintf(importerMain, imports.String(), im.body)}
	for _, from := range []string{"go.sum", "nodeops/fastmount/go.sum"} {
		sum, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		files["go.sum"] += string(sum)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", "driver", ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod -buildvcs=false", "GOWORK=off", "GOAMD64=v1")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", im.name, err, out)
	}
	info, err := os.Stat(filepath.Join(dir, "driver"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(goOutput(t, dir, "list", "-m", "-f", "{{.Path}}", "all"))),
		bytes.Count(goOutput(t, dir, "list", "-deps", "."), []byte("\n")), info.Size()
}
