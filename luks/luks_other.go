//go:build !linux

package luks

import (
	"context"
	"errors"
)

func (m *Mapper) open(context.Context, OpenRequest) (Mapping, error) {
	return Mapping{}, errors.ErrUnsupported
}
func (m *Mapper) close(context.Context, string) error         { return errors.ErrUnsupported }
func (m *Mapper) find(string) (Mapping, error)                { return Mapping{}, errors.ErrUnsupported }
func (m *Mapper) change(context.Context, ChangeRequest) error { return errors.ErrUnsupported }
func (m *Mapper) resize(context.Context, string, Passphrase) (int64, error) {
	return 0, errors.ErrUnsupported
}
