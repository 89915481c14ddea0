package exportdir

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/examples/nfsdriver/drivertest"
	"github.com/csikit/csikit/examples/nfsdriver/share"
	"github.com/csikit/csikit/nodeops"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

var localClass = map[string]string{share.ParamServer: "server", share.ParamShare: "/a"}

func mode(m csi.VolumeCapability_AccessMode_Mode) func(*csi.NodePublishVolumeRequest) {
	return func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.AccessMode.Mode = m }
}

func readOnly(r *csi.NodePublishVolumeRequest) { r.Readonly = true }

// From a volume to the pods and back, with a directory in place of a server.
func TestPublish(t *testing.T) {
	shares := newShares(t)
	c := newCO(t, startLocal(t, shares), localClass)
	v := c.mustCreate("pvc-1")
	for range 2 {
		must(t, c.publish(v, "a"))
		must(t, c.publish(v, "b", readOnly))
		must(t, c.publish(v, "c", mode(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)))
	}
	must(t, os.WriteFile(filepath.Join(c.target("a"), "file"), []byte("data"), 0o600))
	for _, pod := range []string{"b", "c"} {
		if err := os.WriteFile(filepath.Join(c.target(pod), "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing to a read-only publication: %v", err)
		}
	}
	if data, err := os.ReadFile(filepath.Join(shares, "a", "pvc-1", "file")); err != nil || string(data) != "data" {
		t.Errorf("the server has %q (%v)", data, err)
	}
	var st unix.Statfs_t
	must(t, unix.Statfs(c.target("a"), &st))
	if st.Flags&(unix.ST_NOSUID|unix.ST_NODEV) != unix.ST_NOSUID|unix.ST_NODEV {
		t.Errorf("set-ID programs and devices work: flags %x", st.Flags)
	}
	must(t, c.stats(v, "a"))
	refused(t, c.publish(v, "a", readOnly), codes.AlreadyExists, "ro")
	refused(t, c.publish(v, "d", mode(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER)), codes.FailedPrecondition, "allows one target path")
	for range 2 {
		must(t, errors.Join(c.unpublish(v, "a"), c.unpublish(v, "b"), c.unpublish(v, "c"), c.unpublish(v, "d")))
	}
	c.gone("a")
	refused(t, c.stats(v, "a"), codes.NotFound, "")
	must(t, c.delete(v.GetVolumeId()))
	refused(t, c.publish(v, "a"), codes.NotFound, "No such file or directory")
	c.gone("a")
	wantShare(t, filepath.Join(shares, "a"))
}

// A volume whose subDir does not fit into its ID.
func TestPublishLongSubDir(t *testing.T) {
	shares := newShares(t)
	c := newCO(t, startLocal(t, shares), localClass)
	v := c.mustCreate("pvc-1", share.ParamSubDir, strings.Repeat("long/", 20)+"pvc-1")
	w := c.mustCreate("pvc-2", share.ParamSubDir, strings.Repeat("long/", 20)+"pvc-2")
	must(t, errors.Join(c.publish(v, "a"), c.publish(w, "b")))
	must(t, errors.Join(c.stats(v, "a"), c.stats(w, "b")))
	refused(t, c.stats(v, "b"), codes.NotFound, "pvc-2")
	must(t, errors.Join(c.unpublish(v, "a"), c.unpublish(w, "b"), c.delete(v.GetVolumeId()), c.delete(w.GetVolumeId())))
	wantShare(t, filepath.Join(shares, "a"))
}

// A PersistentVolume created by an administrator.
func TestPublishByAttributes(t *testing.T) {
	shares := newShares(t)
	c := newCO(t, startLocal(t, shares), localClass)
	must(t, os.MkdirAll(filepath.Join(shares, "b", "team", "files"), 0o755))
	v := &csi.Volume{VolumeId: "by hand", VolumeContext: map[string]string{
		"server": "server", "share": "/b", "subDir": "team/files", "mountOptions": "ro,noexec", "csi.storage.k8s.io/ephemeral": "false",
	}}
	must(t, c.publish(v, "a"))
	if err := os.WriteFile(filepath.Join(c.target("a"), "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing with the mount option ro: %v", err)
	}
	must(t, c.unpublish(v, "a"))
	for _, bad := range []struct{ key, value, words string }{
		{"subDir", "../a", "subDir"},
		{"subDir", ".csikit-nfs", "are reserved"},
		{"share", "/c", "-exports"},
		{"server", "elsewhere", "-exports"},
		{"mountOptions", "suid", "only an administrator"},
		{"mountOptions", "bind", "only an administrator"},
		{"mountOptions", "addr=10.0.0.1", "only an administrator"},
		{"path", "/etc", `"path"`},
	} {
		w := &csi.Volume{VolumeId: "by hand", VolumeContext: map[string]string{"server": "server", "share": "/b", "subDir": "team/files"}}
		w.VolumeContext[bad.key] = bad.value
		refused(t, c.publish(w, "a"), codes.InvalidArgument, bad.words)
		c.gone("a")
	}
	block := func(r *csi.NodePublishVolumeRequest) {
		r.VolumeCapability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	refused(t, c.publish(v, "a", block), codes.InvalidArgument, "block")
	for _, flags := range []string{"bind", "remount", "bg", "addr=10.0.0.1", "ro,rw"} {
		c.flags = []string{flags}
		refused(t, c.publish(v, "a"), codes.InvalidArgument, "")
		c.gone("a")
	}
}

// A mount helper that hangs is killed, opens the breaker of its server, and leaves
// neither a process nor a mount; unpublishing still works.
func TestHangingHelper(t *testing.T) {
	shares := newShares(t)
	c := newCO(t, startLocal(t, shares, "-server-timeout", "1s"), localClass)
	v := c.mustCreate("pvc-1")
	must(t, c.publish(v, "a"))
	t.Setenv("CSIKIT_TEST_HANG", "1")
	refused(t, c.publish(v, "b"), codes.DeadlineExceeded, "mount.overlay")
	refused(t, c.publish(v, "c"), codes.Unavailable, "next attempt")
	refused(t, c.stats(v, "a"), codes.Unavailable, "next attempt")
	c.gone("b")
	c.gone("c")
	must(t, errors.Join(c.unpublish(v, "a"), c.unpublish(v, "b")))
	c.gone("a")
	t.Setenv("CSIKIT_TEST_HANG", "")
	must(t, again(func() error { return c.publish(v, "c") }))
	must(t, c.unpublish(v, "c"))
}

// What is busy when its volume is deleted is deleted when it is no longer busy, without
// another call.
func TestBusyTrash(t *testing.T) {
	shares := newShares(t)
	c := newCO(t, startLocal(t, shares), localClass)
	v := c.mustCreate("pvc-1")
	shareDir := filepath.Join(shares, "a")
	must(t, os.Mkdir(filepath.Join(shareDir, "pvc-1", "busy"), 0o755))
	must(t, unix.Mount("tmpfs", filepath.Join(shareDir, "pvc-1", "busy"), "tmpfs", 0, ""))
	must(t, c.delete(v.GetVolumeId()))
	entries, err := os.ReadDir(filepath.Join(shareDir, storeName, dirTrash))
	must(t, err)
	if len(entries) != 1 {
		t.Fatalf("the trash has %v", entries)
	}
	must(t, unix.Unmount(filepath.Join(shareDir, storeName, dirTrash, entries[0].Name(), "busy"), 0))
	wantShare(t, shareDir)
}

// The controller's own mounts are created, shared, and taken over from a process that
// has exited, but not from a running one.
func TestControllerMounts(t *testing.T) {
	shares := newShares(t)
	must(t, os.WriteFile(filepath.Join(shares, "a", "file"), nil, 0o600))
	ops, err := nodeops.New(nodeops.Config{Unmount: nodeops.UnmountWait})
	must(t, err)
	dir := t.TempDir()
	start := func() (*nfsMounts, error) {
		return newNFSMounts(t.Context(), dir, "overlay", time.Minute, ops, slog.New(slog.DiscardHandler))
	}
	e := share.Export{Server: "server", Share: "/a"}
	m, err := start()
	must(t, err)
	for range 2 {
		root, err := m.Mount(e)
		must(t, err)
		_, err = root.Stat("file")
		must(t, errors.Join(err, root.Close()))
	}
	if _, err := start(); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("two processes use one directory: %v", err)
	}
	if len(mountsBelow(t, dir)) != 1 {
		t.Errorf("mounted are %v", mountsBelow(t, dir))
	}
	must(t, m.Close())
	m, err = start()
	must(t, err)
	if left := mountsBelow(t, dir); len(left) > 0 {
		t.Errorf("an earlier process left %v", left)
	}
	_, err = m.Mount(share.Export{Server: "server", Share: "/none"})
	if !errors.Is(err, errRefused) {
		t.Errorf("mounting what is not there: %v", err)
	}
	must(t, m.Close())
}

// The author of a pod names the server of an inline volume, and can only use the exports
// of -inline-exports, with the options there: none by default, and separate from those
// of the classes. kubelet only marks inline volumes if it is configured to
// (podInfoOnMount), but their IDs have a form of their own.
func TestInlineVolumes(t *testing.T) {
	shares := newShares(t)
	kubelets := "csi-" + strings.Repeat("0a", 32)
	inline := func(id string, pairs ...string) *csi.Volume {
		v := &csi.Volume{VolumeId: id, VolumeContext: map[string]string{"server": "server", "share": "/b"}}
		for i := 0; i < len(pairs); i += 2 {
			v.VolumeContext[pairs[i]] = pairs[i+1]
		}
		return v
	}
	t.Run("none", func(t *testing.T) {
		c := newCO(t, startLocal(t, shares), localClass)
		refused(t, c.publish(inline(kubelets), "a"), codes.InvalidArgument, "-inline-exports")
		refused(t, c.publish(inline(kubelets, csispec.VolumeContextEphemeral, "false"), "a"), codes.InvalidArgument, "-inline-exports")
		refused(t, c.publish(inline("x", csispec.VolumeContextEphemeral, "true"), "a"), codes.InvalidArgument, "-inline-exports")
		must(t, c.publish(inline("by hand"), "a"))
		must(t, c.unpublish(inline("by hand"), "a"))
		c.gone("a")
	})
	t.Run("some", func(t *testing.T) {
		c := newCO(t, startLocal(t, shares, "-exports", "server:/a", "-inline-exports", "server:/b"), localClass)
		must(t, c.publish(inline(kubelets, "mountOptions", "ro"), "a"))
		must(t, c.unpublish(inline(kubelets), "a"))
		refused(t, c.publish(inline(kubelets, "share", "/a"), "a"), codes.InvalidArgument, "-inline-exports")
		refused(t, c.publish(inline(kubelets, "server", "elsewhere"), "a"), codes.InvalidArgument, "-inline-exports")
		refused(t, c.publish(inline(kubelets, "mountOptions", "port=20490"), "a"), codes.InvalidArgument, "only an administrator")
		refused(t, c.publish(inline(kubelets, "mountOptions", "sec=sys"), "a"), codes.InvalidArgument, "only an administrator")
		refused(t, c.publish(inline("by hand"), "a"), codes.InvalidArgument, "-exports")
		v := c.mustCreate("pvc-1")
		must(t, c.publish(v, "a"))
		must(t, c.unpublish(v, "a"))
		must(t, c.delete(v.GetVolumeId()))
		c.gone("a")
	})
}

func TestHealth(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "a"), 0o755))
	endpoint, get := drivertest.ServeHealth(t, localProvider(dir), "-mode", "controller")
	newCO(t, endpoint, localClass).mustCreate("pvc-1")
	page := get("/debug")
	for _, want := range []string{"calls: 0\n", "locks: 0\n", "servers: 1\n", "closed", "work: 0\n", "exports: 1\n", "server:/a"} {
		if !strings.Contains(page, want) {
			t.Errorf("the debug page has no %q:\n%s", want, page)
		}
	}
}
