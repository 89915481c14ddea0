//go:build !linux

package filepool

import (
	"errors"
	"os"
)

func lockFile(*os.File) error { return errors.ErrUnsupported }

func (p *pool) statfs() (total, free int64, err error) { return 0, 0, errors.ErrUnsupported }

func holdsData(*os.File) (bool, error) { return true, errors.ErrUnsupported }

func (p *pool) canReflink() (bool, error) { return false, errors.ErrUnsupported }

func allocate(*os.File, int64) error { return errors.ErrUnsupported }

func cloneFile(*os.File, *os.File) error { return errors.ErrUnsupported }

func nextData(*os.File, int64) (start, end int64, err error) { return 0, 0, errors.ErrUnsupported }

func allocated(*os.File) (int64, error) { return 0, errors.ErrUnsupported }

func (p *pool) isReadOnly() (bool, error) { return false, errors.ErrUnsupported }

func lockShared(*pool, string) (unlock func() error, err error) { return nil, errors.ErrUnsupported }

func isWanted(*pool) bool { return false }
