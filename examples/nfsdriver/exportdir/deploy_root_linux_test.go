package exportdir

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/csitest/nfsd"
	"golang.org/x/sys/unix"
)

// container runs like the controller's container: in a mount namespace with a read-only
// root, and as root with only the added capabilities.
const container = `mount --make-rprivate / && mount -o remount,bind,ro / && mount --bind /run /run && mount -o remount,bind,ro /run || exit
if touch /x /run/x 2>/dev/null; then echo the root is not read-only; exit 1; fi
exec setpriv --no-new-privs --bounding-set="$0" "$@"`

// The controller works with the capabilities that its manifest gives it.
func TestNFSContainer(t *testing.T) {
	s := nfsd.Start(t)
	gate.Tools(t, "setpriv", "sh")
	manifest, err := os.ReadFile("../deploy/base/controller.yaml")
	must(t, err)
	added := regexp.MustCompile(`(?m)^ *add: \[(.*)\]$`).FindSubmatch(manifest)
	if added == nil {
		t.Fatal("the manifest adds no capabilities")
	}
	capabilities := "-all"
	for c := range strings.SplitSeq(string(added[1]), ", ") {
		capabilities += ",+" + strings.ToLower(c)
	}

	s.Export("share", writable)
	dir := t.TempDir()
	endpoint := "unix://" + filepath.Join(dir, "csi.sock")
	driver := gate.RoleCommand(context.Background(), "nfsdriver", "-mode", "controller", "-endpoint", endpoint, "-mount-dir", filepath.Join(dir, "mnt"))
	driver.Args = append([]string{"sh", "-c", container, capabilities, driver.Path}, driver.Args[1:]...)
	driver.Path, err = exec.LookPath("sh")
	must(t, err)
	driver.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	log, err := os.Create(filepath.Join(dir, "log"))
	must(t, err)
	defer log.Close()
	driver.Stdout, driver.Stderr = log, log
	must(t, driver.Start())
	t.Cleanup(func() {
		_ = driver.Process.Signal(unix.SIGTERM)
		err := driver.Wait()
		if text, _ := os.ReadFile(log.Name()); err != nil || t.Failed() {
			t.Errorf("the driver: %v\n%s", err, text)
		}
	})

	c := newCO(t, endpoint, classOf(s, "share"))
	node := newCO(t, startNFS(t, "-mode", "node"), nil)
	c.graceful()
	v, err := c.create("pvc-1", "owner", "4711", "group", "4712", "mountPermissions", "2770")
	must(t, err)
	must(t, node.publish(v, "a"))
	t.Cleanup(func() { _ = node.unpublish(v, "a") })
	in := func(name string) string { return filepath.Join(node.target("a"), name) }
	makeTree(t, in(""), 3, 16<<20)
	// From here only root and two users may remove entries.
	must(t, os.Mkdir(in("sticky"), 0o777))
	must(t, os.WriteFile(in("sticky/file"), nil, 0o600))
	must(t, errors.Join(os.Chown(in("sticky/file"), 98, 98), os.Chown(in("sticky"), 99, 99), os.Chmod(in("sticky"), 0o777|os.ModeSticky)))
	want := describe(t, s.Dir("share/pvc-1"))

	var id string
	var restored *csi.Volume
	must(t, again(func() (err error) { id, err = c.snapshot("snap", v.GetVolumeId()); return err }))
	must(t, again(func() (err error) { restored, err = c.create("pvc-2", "snapshot", id); return err }))
	compareTrees(t, describe(t, s.Dir("share/pvc-2")), want)
	must(t, node.unpublish(v, "a"))
	must(t, errors.Join(c.deleteSnapshot(id), c.delete(v.GetVolumeId()), c.delete(restored.GetVolumeId())))
	wantShare(t, s.Dir("share"))
	if m := mountsBelow(t, filepath.Join(dir, "mnt")); len(m) > 0 {
		t.Errorf("the controller's mounts are seen from outside: %v", m)
	}
	t.Logf("with %s", capabilities)
}
