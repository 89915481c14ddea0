package images

import (
	"archive/tar"
	"bytes"
	"maps"
	"path"
	"slices"
	"time"
)

// A Tree is the files of a layer, by their path in the image without a leading slash.
// Directories that are missing belong to root, with mode 0755.
type Tree map[string]File

// A File is a regular file, or a directory or symbolic link.
type File struct {
	Mode     int64 // permissions
	Data     []byte
	Dir      bool
	Link     string // target of a symbolic link
	UID, GID int
}

// Layer returns the tree as a tar file, sorted by name, with one time for all files.
func (t Tree) Layer(at time.Time) ([]byte, error) {
	all := maps.Clone(t)
	for name := range t {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, found := all[dir]; !found {
				all[dir] = File{Mode: 0o755, Dir: true}
			}
		}
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		h := &tar.Header{Name: name, Mode: f.Mode, Uid: f.UID, Gid: f.GID, ModTime: at, Format: tar.FormatPAX}
		switch {
		case f.Dir:
			h.Typeflag, h.Name = tar.TypeDir, name+"/"
		case f.Link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.Link, 0o777
		default:
			h.Typeflag, h.Size = tar.TypeReg, int64(len(f.Data))
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.Data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}
