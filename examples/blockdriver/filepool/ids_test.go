package filepool

import (
	"path/filepath"
	"strings"
)

// What an earlier version derived from a name, and no volume here has.
func volumeID(name string) string   { return "vol-" + digest(name)[:32] }
func snapshotID(name string) string { return "snap-" + digest(name)[:32] }
func groupID(name string) string    { return "group-" + digest(name)[:32] }

// idOnDisk returns the ID of what has the name, or of what is left of it, or of
// nothing.
func idOnDisk(kind, name string, dirs ...string) string {
	id := newID(kind, name)
	for _, dir := range dirs {
		files, _ := filepath.Glob(filepath.Join(dir, "*", keyOfName(kind, name)+"*"))
		for _, file := range files {
			found, ext, _ := strings.Cut(filepath.Base(file), ".")
			if id = found; ext == "json" {
				return id
			}
		}
	}
	return id
}

func (p *pool) volumeID(name string) string   { return idOnDisk(volumeKind, name, p.dir) }
func (p *pool) snapshotID(name string) string { return idOnDisk(snapshotKind, name, p.dir) }

func (m *filePools) dirs() (list []string) {
	for _, c := range m.configs {
		list = append(list, c.Dir)
	}
	return list
}

func (m *filePools) volumeID(name string) string   { return idOnDisk(volumeKind, name, m.dirs()...) }
func (m *filePools) snapshotID(name string) string { return idOnDisk(snapshotKind, name, m.dirs()...) }
func (m *filePools) groupID(name string) string    { return idOnDisk(groupKind, name, m.dirs()...) }
