//go:build !linux

package share

import "errors"

func askKernel(string) error { return errors.ErrUnsupported }
