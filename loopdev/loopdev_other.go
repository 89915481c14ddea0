//go:build !linux

package loopdev

import (
	"context"
	"errors"
)

func attach(context.Context, string, config) (*Device, error) { return nil, errors.ErrUnsupported }

func findPath(string) (*Device, error) { return nil, errors.ErrUnsupported }

func list() ([]Device, error) { return nil, errors.ErrUnsupported }

func (d *Device) resize() (int64, error) { return 0, errors.ErrUnsupported }

func (d *Device) detach(context.Context) error { return errors.ErrUnsupported }
