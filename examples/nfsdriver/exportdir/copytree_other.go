//go:build !linux

package exportdir

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

func copyTree(dst, src *os.File, since time.Time, of origins, progress func(files, bytes int64)) (changes, error) {
	return changes{}, errors.ErrUnsupported
}

func changedAt(fs.FileInfo) time.Time { return time.Time{} }

func inodeOf(fs.FileInfo) uint64 { return 0 }

const pathOnly = os.O_RDONLY

func sameMount(a, b *os.File) error { return errors.ErrUnsupported }

func move(from *os.Root, name string, to *os.Root, as string) error { return errors.ErrUnsupported }

func lockFile(*os.File) error { return errors.ErrUnsupported }

func statfs(*os.File) (total, free int64, err error) { return 0, 0, errors.ErrUnsupported }
