package mountapi

import (
	"slices"
	"strings"
)

// Stack returns the mounts of the table that are stacked on the path, the top last, as the
// kernel's path lookup would meet them. Comparing only mount points would also find mounts
// that are covered by others: below a shared bind mount of a directory on itself each mount
// is listed twice, and only one of the two is on the path.
//
// It allocates only what it returns: the table has thousands of mounts, and one of them is at
// the path.
func Stack(table []Mount, path string) []Mount {
	var on []Mount
	at := root(table, path)
	for range table { // each at most once, whatever the ids say
		if at == nil {
			break
		}
		if at.MountPoint == path {
			on = append(on, *at)
		}
		at = child(table, at.ID, path)
	}
	return on
}

// root returns the mount at which the lookup of the path begins: its parent is not in the
// table, or is the mount itself.
func root(table []Mount, path string) (found *Mount) {
	for i := range table {
		m := &table[i]
		if isNearer(m, found, path) && (m.ParentID == m.ID || !slices.ContainsFunc(table, func(o Mount) bool { return o.ID == m.ParentID })) {
			found = m
		}
	}
	return found
}

// child returns the mount to which the lookup of the path crosses from the one with that id:
// its child that is the nearest on the way.
func child(table []Mount, id int, path string) (found *Mount) {
	for i := range table {
		m := &table[i]
		if m.ParentID == id && m.ID != id && isNearer(m, found, path) {
			found = m
		}
	}
	return found
}

// isNearer reports whether the mount is on the way to the path, and the first there of those
// seen so far.
func isNearer(m, found *Mount, path string) bool {
	return (found == nil || len(m.MountPoint) < len(found.MountPoint)) && isBelow(path, m.MountPoint)
}

func isBelow(path, dir string) bool {
	dir = strings.TrimSuffix(dir, "/")
	return strings.HasPrefix(path, dir) && (len(path) == len(dir) || path[len(dir)] == '/')
}
