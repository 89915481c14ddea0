//go:build linux

package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const version = "v0.0.1-test"

// TestImages makes the images of the last commit from two clean checkouts in different
// directories, compares the files, and runs what they contain.
func TestImages(t *testing.T) {
	const first, second = "a", "another/directory/that/has/a/longer/name"
	dir := t.TempDir()
	a, b, cache := filepath.Join(dir, first), filepath.Join(dir, second), filepath.Join(dir, "cache")
	checkOut(t, a)
	checkOut(t, b)
	if out, err := build(t, a, cache); strings.Contains(out, errStale.Error()) {
		// That Debian has replaced a package is no defect of this commit.
		t.Logf("with the packages that Debian serves now, because: %s", out)
		run(t, "go", "-C", filepath.Join(a, "hack/images"), "run", "./make", "-root", a, "-cache", cache, "-renew")
		lists := "hack/images/debian"
		if err := errors.Join(os.RemoveAll(filepath.Join(b, lists)), os.CopyFS(filepath.Join(b, lists), os.DirFS(filepath.Join(a, lists)))); err != nil {
			t.Fatal(err)
		}
		if out, err := build(t, a, cache); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	} else if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := build(t, b, cache); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	outputs := map[string]bool{}
	for _, checkout := range []string{a, b} {
		for _, f := range readDir(t, filepath.Join(checkout, "bin/images")) {
			outputs[f] = true
		}
	}
	want := []string{"blockdriver-controller.tar", "blockdriver-node.tar", "nfsdriver.tar"}
	for _, name := range []string{"blockdriver-controller", "blockdriver-node", "nfsdriver"} {
		want = append(want, name+".amd64.cdx.json", name+".arm64.cdx.json")
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(outputs)); !slices.Equal(got, want) {
		t.Fatalf("got the files %v, want %v", got, want)
	}
	for name := range outputs {
		one, two := readFile(t, filepath.Join(a, "bin/images", name)), readFile(t, filepath.Join(b, "bin/images", name))
		if !bytes.Equal(one, two) {
			t.Errorf("%s: the builds of two checkouts differ (%d and %d bytes)", name, len(one), len(two))
		}
	}

	images := filepath.Join(a, "bin/images")
	for _, name := range []string{"blockdriver-controller", "blockdriver-node", "nfsdriver"} {
		for _, arch := range []string{"amd64", "arm64"} {
			t.Run(name+"/"+arch, func(t *testing.T) {
				i := unpack(t, filepath.Join(images, name+".tar"), arch)
				checkFiles(t, i)
				checkSBOM(t, i, readFile(t, filepath.Join(images, name+"."+arch+".cdx.json")))
				if arch != runtime.GOARCH {
					return
				}
				if os.Geteuid() != 0 {
					if strings.Contains(os.Getenv("CSIKIT_TEST_REQUIRE"), "root") {
						t.Fatal("needs root, for chroot")
					}
					t.Skip("needs root, for chroot")
				}
				mountProc(t, i)
				runTools(t, i, name)
				serve(t, i, name)
			})
		}
	}
}

func checkOut(t *testing.T, dir string) {
	t.Helper()
	run(t, "git", "clone", "-q", "--no-hardlinks", run(t, "git", "rev-parse", "--show-toplevel"), dir)
}

// build runs what "make images" runs, in a checkout of its own.
func build(t *testing.T, dir, cache string) (output string, err error) {
	t.Helper()
	epoch := run(t, "git", "-C", dir, "log", "-1", "--format=%ct")
	out, err := exec.CommandContext(t.Context(), "go", "-C", filepath.Join(dir, "hack/images"), "run", "./make",
		"-root", dir, "-cache", cache, "-o", filepath.Join(dir, "bin/images"), "-version", version, "-epoch", epoch).CombinedOutput()
	return string(out), err
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s%s", name, args, err, out, stderr.Bytes())
	}
	return strings.TrimSpace(string(out))
}

// An unpacked image is one that was read from an archive and written to a directory.
type unpacked struct {
	dir, arch  string
	user       string
	entrypoint []string
	files      map[string]*tar.Header
}

// unpack reads an image as a container runtime does: from the index to the layers.
func unpack(t *testing.T, archive, arch string) unpacked {
	t.Helper()
	blobs := map[string][]byte{}
	r := tar.NewReader(bytes.NewReader(readFile(t, archive)))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if digest, is := strings.CutPrefix(h.Name, "blobs/sha256/"); is && describe("", data).Digest != "sha256:"+digest {
			t.Fatalf("%s is not its digest", h.Name)
		}
		blobs[h.Name] = data
	}
	get := func(d Descriptor, to any) {
		t.Helper()
		data := blobs["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		if int64(len(data)) != d.Size {
			t.Fatalf("%s: %d bytes, want %d", d.Digest, len(data), d.Size)
		}
		if err := json.Unmarshal(data, to); err != nil {
			t.Fatal(err)
		}
	}
	var top, all struct{ Manifests []Descriptor }
	if err := json.Unmarshal(blobs["index.json"], &top); err != nil || len(top.Manifests) != 1 {
		t.Fatalf("index.json: %v: %s", err, blobs["index.json"])
	}
	get(top.Manifests[0], &all)
	n := slices.IndexFunc(all.Manifests, func(d Descriptor) bool { return *d.Platform == platform{arch, "linux"} })
	if n < 0 || len(all.Manifests) != 2 {
		t.Fatalf("manifests: %+v", all.Manifests)
	}
	var manifest struct {
		Config Descriptor
		Layers []Descriptor
	}
	get(all.Manifests[n], &manifest)
	var config struct {
		Architecture string
		Config       struct {
			User       string
			Entrypoint []string
		}
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	get(manifest.Config, &config)
	i := unpacked{t.TempDir(), arch, config.Config.User, config.Config.Entrypoint, map[string]*tar.Header{}}
	if err := os.Chmod(filepath.Dir(i.dir), 0o755); err != nil { // for a driver that is another user
		t.Fatal(err)
	}
	if config.Architecture != arch || len(config.RootFS.DiffIDs) != len(manifest.Layers) {
		t.Errorf("config: %+v", config)
	}
	for n, d := range manifest.Layers {
		compressed, err := gzip.NewReader(bytes.NewReader(blobs["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]))
		if err != nil {
			t.Fatal(err)
		}
		layer, err := io.ReadAll(compressed)
		if err != nil {
			t.Fatal(err)
		}
		if describe("", layer).Digest != config.RootFS.DiffIDs[n] {
			t.Errorf("layer %d is not its diff ID", n)
		}
		names := tar.NewReader(bytes.NewReader(layer))
		for h, err := names.Next(); err == nil; h, err = names.Next() {
			i.files[strings.TrimSuffix(h.Name, "/")] = h
		}
		cmd := exec.CommandContext(t.Context(), "tar", "-x", "--no-same-owner", "--keep-directory-symlink", "-C", i.dir)
		cmd.Stdin = bytes.NewReader(layer)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("tar: %v\n%s", err, out)
		}
	}
	return i
}

// checkFiles: programs of the architecture alone, no shell and no script, no set-user-ID, root's,
// of one time.
func checkFiles(t *testing.T, i unpacked) {
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[i.arch]
	programs := 0
	at := i.files[strings.TrimPrefix(i.entrypoint[0], "/")].ModTime
	for name, h := range i.files {
		if h.Uid != 0 || h.Gid != 0 || h.Mode&0o6000 != 0 || !h.ModTime.Equal(at) {
			t.Errorf("%s: %d:%d, mode %o, %v", name, h.Uid, h.Gid, h.Mode, h.ModTime)
		}
		if slices.Contains([]string{"sh", "bash", "dash", "perl", "python3", "apt-get", "dpkg"}, filepath.Base(name)) && h.Typeflag != tar.TypeDir {
			t.Errorf("%s is in the image", name)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		data := readFile(t, filepath.Join(i.dir, name))
		if isScript(data) {
			t.Errorf("%s is a script", name)
		}
		if isELF(data) {
			programs++
			f, err := elf.NewFile(bytes.NewReader(data))
			if err != nil || f.Machine != machine {
				t.Errorf("%s: %v, of another machine", name, err)
			}
		}
	}
	t.Logf("%d files, %d of them programs and libraries", len(i.files), programs)
}

func checkSBOM(t *testing.T, i unpacked, text []byte) {
	var bom struct {
		BOMFormat  string
		Components []struct{ Name, Version, PURL string }
	}
	if err := json.Unmarshal(text, &bom); err != nil || bom.BOMFormat != "CycloneDX" {
		t.Fatalf("SBOM: %v: %.100s", err, text)
	}
	listed := map[string]bool{}
	for _, c := range bom.Components {
		if c.Version == "" || !strings.HasPrefix(c.PURL, "pkg:") {
			t.Errorf("SBOM: %+v", c)
		}
		listed[c.Name] = true
	}
	if !listed["google.golang.org/grpc"] || !listed["stdlib"] || !listed["github.com/csikit/csikit"] {
		t.Errorf("SBOM: no modules of Go: %v", listed)
	}
	for name := range i.files {
		if p, is := strings.CutPrefix(name, "var/lib/dpkg/status.d/"); is && !listed[p] {
			t.Errorf("the SBOM has no %s", p)
		}
	}
}

// mountProc gives the image a /proc, as a container has it, in a mount namespace of this goroutine
// and what it starts.
func mountProc(t *testing.T, i unpacked) {
	runtime.LockOSThread() // for good: the thread ends with the goroutine, and the namespace with it
	proc := filepath.Join(i.dir, "proc")
	if err := errors.Join(
		syscall.Unshare(syscall.CLONE_NEWNS), syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
		os.Mkdir(proc, 0o755), syscall.Mount("proc", proc, "proc", 0, ""),
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(proc, 0); err != nil {
			t.Error(err)
		}
	})
}

// tools are what a driver runs, and the arguments with which each does something and succeeds.
var tools = map[string][][]string{
	"blockdriver-node": {
		{"mke2fs", "-q", "-t", "ext4", "/tmp/ext4", "64m"}, {"e2fsck", "-f", "-n", "/tmp/ext4"},
		{"resize2fs", "/tmp/ext4", "32m"}, {"blkid", "-p", "-o", "export", "/tmp/ext4"},
		{"mkfs.xfs", "-q", "/tmp/xfs"}, {"xfs_repair", "-n", "/tmp/xfs"}, {"xfs_growfs", "-V"},
	},
	"nfsdriver": {{"mount.nfs", "-V"}, {"mount.nfs4", "-V"}},
}

func runTools(t *testing.T, i unpacked, name string) {
	if tools[name] != nil {
		f, err := os.Create(filepath.Join(i.dir, "tmp/xfs"))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Truncate(512<<20), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range tools[name] {
		var path string
		for _, dir := range []string{"/usr/sbin/", "/usr/bin/"} {
			if i.files[strings.TrimPrefix(dir+args[0], "/")] != nil {
				path = dir + args[0]
			}
		}
		if path == "" {
			t.Errorf("%s is not in the image", args[0])
			continue
		}
		cmd := exec.CommandContext(t.Context(), path, args[1:]...)
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin"}
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: i.dir}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v in the image: %v\n%s", args, err, out)
		}
	}
}

// serve starts the driver in the image, as its user, and
// asks for its version and whether it is ready.
func serve(t *testing.T, i unpacked, name string) {
	arguments := map[string][]string{
		"blockdriver-controller": {"-mode=controller", "-pool=/pool"},
		"blockdriver-node":       {"-pool=/pool", "-node-id=n"},
		"nfsdriver":              {"-mode=node", "-node-id=n"},
	}[name]
	attr := &syscall.SysProcAttr{Chroot: i.dir, Pdeathsig: syscall.SIGKILL}
	uid := 0
	if i.user != "" {
		user, group, _ := strings.Cut(i.user, ":")
		u, err := strconv.Atoi(user)
		g, err2 := strconv.Atoi(group)
		if err := errors.Join(err, err2); err != nil || u == 0 {
			t.Fatalf("user %q: %v", i.user, err)
		}
		attr.Credential = &syscall.Credential{Uid: uint32(u), Gid: uint32(g)}
		uid = u
	}
	if want := strings.HasSuffix(name, "-controller"); want != (uid != 0) {
		t.Errorf("the image's user is %q", i.user)
	}
	for _, d := range []string{"csi", "pool"} {
		d = filepath.Join(i.dir, d)
		if err := errors.Join(os.MkdirAll(d, 0o700), os.Chown(d, uid, uid)); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	start := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), i.entrypoint[0], args...)
		cmd.Env, cmd.Dir, cmd.SysProcAttr = []string{"PATH=/usr/sbin:/usr/bin"}, "/", attr
		cmd.Stdout, cmd.Stderr = &log, &log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	if strings.HasPrefix(name, "blockdriver") {
		if err := start("init", "-pool=/pool").Wait(); err != nil {
			t.Fatalf("init: %v\n%s", err, &log)
		}
	}
	cmd := start(append([]string{"-endpoint=unix:///csi/csi.sock", "-drain-timeout=1s"}, arguments...)...)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+filepath.Join(i.dir, "csi/csi.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	probe, err2 := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{})
	if info.GetVendorVersion() != version || err2 != nil {
		t.Errorf("GetPluginInfo: %v, %v; Probe: %v, %v", info, err, probe, err2)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil || t.Failed() {
		t.Errorf("%v: %v\n%s", cmd.Args, err, &log)
	}
}

// A version that is not served any more is an error with the command that mends it.
func TestNotServed(t *testing.T) {
	b := Builder{Cache: t.TempDir(), Log: t.Logf}
	err := b.download(t.Context(), list{snapshot: "20200101T000000Z", packages: []debianPackage{
		{"libc6", "0.1", strings.Repeat("0", 64), "debian/pool/main/g/glibc/libc6_0.1_amd64.deb"},
	}})
	if !errors.Is(err, errNotServed) || !strings.Contains(err.Error(), "libc6 0.1") || !strings.Contains(err.Error(), "make images-renew") {
		t.Errorf("got %v", err)
	}
}

// A list that is not the Dockerfile's is an error, before anything is downloaded.
func TestStaleList(t *testing.T) {
	b := Builder{Root: t.TempDir(), Cache: t.TempDir(), Log: t.Logf}
	name := b.list("x", "amd64")
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	want := list{wanted: []string{"a", baseFiles}, snapshot: "20260102T030405Z", packages: []debianPackage{{"a", "1:2-3", "ff", "debian/pool/a.deb"}}}
	if err := want.write(name); err != nil {
		t.Fatal(err)
	}
	got, err := readList(name)
	if err != nil || !slices.Equal(got.wanted, want.wanted) || got.snapshot != want.snapshot || !slices.Equal(got.packages, want.packages) {
		t.Errorf("got %+v, %v", got, err)
	}
	for what, text := range map[string]string{"other packages": "install b base-files\nsnapshot 20260102T030405Z\na 1 ff p\n", "no packages": "install a base-files\n", "nonsense": "x\n"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, _, err := b.base(t.Context(), "bookworm", "x", "amd64", stage{packages: []string{"a"}}); !errors.Is(err, errStale) {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

// A layer depends on the files alone: not on their order, nor on the time.
func TestLayer(t *testing.T) {
	tree := Tree{"b/c": {Mode: 0o644, Data: []byte("x")}, "a": {Link: "b"}, "b/d/e": {Mode: 0o755}}
	first, err := tree.Layer(time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if again, err := maps.Clone(tree).Layer(time.Unix(1, 0)); err != nil || !bytes.Equal(first, again) {
			t.Fatal("two layers of the same files differ", err)
		}
	}
	var names []string
	r := tar.NewReader(bytes.NewReader(first))
	for h, err := r.Next(); err == nil; h, err = r.Next() {
		names = append(names, h.Name)
	}
	if want := []string{"a", "b/", "b/c", "b/d/", "b/d/e"}; !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func readDir(t *testing.T, name string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
