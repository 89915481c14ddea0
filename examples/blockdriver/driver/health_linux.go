package driver

import (
	"bufio"
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// becameReadOnly: the file system at path refuses writes because of errors. Before Linux
// 6.14 its superblock is read-only then and the mount is not, as proc(5) shows; since then
// ext4 does not report it in its flags, and still refuses to sync. There is little to sync
// in a directory.
func becameReadOnly(path string) bool {
	dir, err := os.OpenFile(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil { // such as a raw block volume
		return false
	}
	defer dir.Close()
	if errors.Is(unix.Fsync(int(dir.Fd())), unix.EROFS) {
		return true
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	defer f.Close()
	escaped := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(path)
	found := false
	for lines := bufio.NewScanner(f); lines.Scan(); { // the last line is the topmost mount
		mount, fs, _ := strings.Cut(lines.Text(), " - ")
		m, super := strings.Fields(mount), strings.Fields(fs)
		if len(m) > 5 && len(super) > 2 && m[4] == escaped {
			found = isReadOnly(super[2]) && !isReadOnly(m[5])
		}
	}
	return found
}

func isReadOnly(options string) bool { return slices.Contains(strings.Split(options, ","), "ro") }
