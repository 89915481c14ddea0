package drivertest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"golang.org/x/sys/unix"
)

// Without a server, a directory replaces it: the controller works in it instead of
// mounting the export, and a node mounts a volume with a helper as usual. The helper
// mounts an overlay with an empty lower layer, because like NFS it shows the given
// source. All mounts of a volume are of one overlay: two would not see each other's
// changes.
const helperScript = `#!/bin/sh
dir="$CSIKIT_TEST_SHARES/${1#*:}"
[ -d "$dir" ] || { echo "mount.nfs: mounting $1 failed, reason given by server: No such file or directory"; exit 32; }
[ -z "$CSIKIT_TEST_HANG" ] || exec sleep 1000
all="$CSIKIT_TEST_SHARES/.work"
id="$(stat -c %i "$dir")" && exec 9>"$all/lock" && flock 9 && new=$(mktemp -d "$all/XXXXXX") || exit 1
of="workdir=$all/$id-"
at=$(awk -v of="$of" 'index($0, of) { print $5; exit }' /proc/self/mountinfo)
if [ -n "$at" ] && mount -i -n --bind "$at" "$new" 2>/dev/null; then # or it was unmounted concurrently
	awk -v of="$of" -v new="$new" '$5 == new && index($0, of) { ok = 1 } END { exit !ok }' /proc/self/mountinfo || { umount -i -n "$new"; at=; }
else
	at=
fi
if [ -z "$at" ]; then
	work=$(mktemp -d "$all/$id-XXXXXX") && mkdir "$work/lower" "$work/work" &&
	mount -i -n -t overlay -o "userxattr,lowerdir=$work/lower,upperdir=$dir,workdir=$work/work" "$1" "$new" || exit 1
fi
flags=remount,bind,rw,suid,dev,exec,relatime
case ",$4," in *,ro,*) flags=$flags,ro ;; esac
case ",$4," in *,suid,*) ;; *,nosuid,*) flags=$flags,nosuid ;; esac
case ",$4," in *,nodev,*) flags=$flags,nodev ;; esac
case ",$4," in *,noexec,*) flags=$flags,noexec ;; esac
case ",$4," in *,noatime,*) flags=$flags,noatime ;; esac
mount -i -n -o "$flags" "$new" && exec mount -i -n --move "$new" "$2"
`

// NewShares returns a directory that replaces a server with the shares /a and /b, for
// storage.Mount with the type "overlay" and any server's name.
func NewShares(t *testing.T) string {
	t.Helper()
	gate.UserNS(t)
	dir := t.TempDir()
	Must(t, unix.Mount("server", dir, "tmpfs", 0, "")) // an overlay cannot write on an overlay
	t.Cleanup(func() { Must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	for _, d := range []string{"a", "b", ".work", ".bin"} {
		Must(t, os.Mkdir(filepath.Join(dir, d), 0o755))
	}
	Must(t, os.WriteFile(filepath.Join(dir, ".bin", "mount.overlay"), []byte(helperScript), 0o755))
	t.Setenv(SharesVariable, dir)
	t.Setenv("PATH", filepath.Join(dir, ".bin")+":"+os.Getenv("PATH"))
	return dir
}

// SharesVariable has the directory of NewShares in processes that a test starts.
const SharesVariable = "CSIKIT_TEST_SHARES"
