package nodeops

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// users names the processes that keep what is mounted at the path busy: those
// with a file open on it, or their working directory, root or program there. It
// reads names of links in /proc only and touches nothing on the mount, which may
// be dead. Processes in other mount namespaces know the same files by other names
// and are not found.
func users(mountPoint string) []string {
	pids, _ := filepath.Glob("/proc/[0-9]*")
	var found []string
	for _, dir := range pids {
		links, _ := filepath.Glob(dir + "/fd/*")
		links = append(links, dir+"/cwd", dir+"/root", dir+"/exe")
		if slices.ContainsFunc(links, func(link string) bool { return isBelow(link, mountPoint) }) {
			name, _ := os.ReadFile(dir + "/comm")
			found = append(found, fmt.Sprintf("%s (%s)", filepath.Base(dir), strings.TrimSpace(string(name))))
		}
	}
	slices.SortFunc(found, func(a, b string) int { return pidOf(a) - pidOf(b) })
	return found
}

func isBelow(link, dir string) bool {
	to, err := os.Readlink(link)
	to = strings.TrimSuffix(to, " (deleted)")
	return err == nil && (to == dir || strings.HasPrefix(to, strings.TrimSuffix(dir, "/")+"/"))
}

func pidOf(user string) int {
	pid, _ := strconv.Atoi(user[:strings.IndexByte(user, ' ')])
	return pid
}
