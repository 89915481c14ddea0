//go:build !linux

package refdriver

import "errors"

// Bind mounts from at to.
func Bind(string, string, bool, ...string) error { return errors.ErrUnsupported }

// Unbind undoes one Bind.
func Unbind(string) error { return errors.ErrUnsupported }

func mountDisk(string, int64) error { return errors.ErrUnsupported }
func growDisk(string, int64) error  { return errors.ErrUnsupported }
func setGroup(string, int) error    { return errors.ErrUnsupported }

func usage(string) (total, available int64, err error) { return 0, 0, errors.ErrUnsupported }
