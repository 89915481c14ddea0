//go:build !linux

package filepool

import (
	"errors"

	"github.com/csikit/csikit/loopdev"
)

func tune(*loopdev.Device, string, map[string]string) error { return errors.ErrUnsupported }
