//go:build !linux

package refdriver

import "errors"

// Bind mounts from at to.
func Bind(string, string, bool) error { return errors.ErrUnsupported }

// Unbind undoes one Bind.
func Unbind(string) error { return errors.ErrUnsupported }
