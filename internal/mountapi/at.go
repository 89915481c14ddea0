package mountapi

import "strings"

// Stack returns the mounts of the table that are stacked on the path, the top last, as the
// kernel's path lookup would meet them. Comparing only mount points would also find mounts that are covered by others:
// below a shared bind mount of a directory on itself each mount is listed
// twice, and only one of the two is on the path.
func Stack(table []Mount, path string) []Mount {
	ids := make(map[int]bool, len(table))
	for _, m := range table {
		ids[m.ID] = true
	}
	// From a mount the lookup crosses to its child that is the nearest on the way.
	next := func(isNext func(Mount) bool) (found *Mount) {
		for i, m := range table {
			if isNext(m) && isBelow(path, m.MountPoint) && (found == nil || len(m.MountPoint) < len(found.MountPoint)) {
				found = &table[i]
			}
		}
		return found
	}
	var on []Mount
	at := next(func(m Mount) bool { return m.ParentID == m.ID || !ids[m.ParentID] })
	for range table { // each at most once, whatever the ids say
		if at == nil {
			break
		}
		if at.MountPoint == path {
			on = append(on, *at)
		}
		at = next(func(m Mount) bool { return m.ParentID == at.ID && m.ID != at.ID })
	}
	return on
}

func isBelow(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
