//go:build !linux

package main

import (
	"errors"
	"os"
)

func lockFile(*os.File) error { return errors.ErrUnsupported }

func (p *pool) statfs() (total, free int64, err error) { return 0, 0, errors.ErrUnsupported }

func holdsData(*os.File) (bool, error) { return true, errors.ErrUnsupported }
