package mountapi

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// IsShared reports whether the mount that holds the path is in a peer group ("shared" in
// proc(5)), so that what is mounted below it appears in the other mounts of the group.
func IsShared(path string) (bool, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	id, err := mountID(fd)
	if err != nil {
		return false, fmt.Errorf("mount that holds %s: %w", path, err)
	}
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(text)) {
		// The optional fields follow the sixth, see parseLine.
		f := strings.Fields(line)
		if len(f) < 7 || f[0] != strconv.Itoa(id) {
			continue
		}
		for _, field := range f[6:] {
			if field == "-" {
				break
			}
			if strings.HasPrefix(field, "shared:") {
				return true, nil
			}
		}
		return false, nil
	}
	return false, fmt.Errorf("the mount that holds %s is not in this mount namespace", path)
}

// mountID returns the id of the mount on which the file was opened, as the mount table has it.
func mountID(fd int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/thread-self/fdinfo/%d", fd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strconv.Atoi(strings.TrimSpace(id))
		}
	}
	return 0, errors.New("fdinfo shows no mount")
}
