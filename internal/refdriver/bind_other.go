//go:build !linux

package refdriver

import "errors"

func bind(string, string, bool) error { return errors.ErrUnsupported }
func unbind(string) error             { return errors.ErrUnsupported }
