//go:build !linux

package main

import (
	"errors"
	"io/fs"
	"os"
)

func copyTree(dst, src *os.File, progress func(files, bytes int64)) error {
	return errors.ErrUnsupported
}

func inodeOf(fs.FileInfo) uint64 { return 0 }

func statfs(*os.File) (total, free int64, err error) { return 0, 0, errors.ErrUnsupported }
