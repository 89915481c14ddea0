package nodeops

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
)

// A file that is mounted below a file system whose server has ended cannot be read, which must not
// keep other volumes from being staged; unless it is the node of the device.
func TestFileBelowADeadServer(t *testing.T) {
	for _, own := range []bool{false, true} {
		f := newFixture(t, 64*mib)
		source := "/dev/null"
		if own {
			source = f.dev.Path
		}
		dir := filepath.Join(filepath.Dir(f.image), "fuse")
		ok(t, os.Mkdir(dir, 0o755))
		server := mountFuse(t, dir)
		ok(t, unix.Mount(source, dir+"/file", "", unix.MS_BIND, ""))
		if on := f.mounts(dir + "/file"); len(on) != 1 || !mayBeNode(on[0]) {
			t.Fatalf("mounted: %+v", on)
		}
		server.die() // the first look at the file fails, and makes the kernel detach it
		err := f.stage(f.stageRequest("ext4"))
		if own {
			wantKind(t, err, csierr.Precondition, "published as a raw block device at "+dir+"/file")
		} else {
			ok(t, err)
		}
		for _, p := range []string{f.staging, dir} {
			for more := true; more; {
				more, err = mountapi.Detach(p)
				ok(t, err)
			}
		}
	}
}
