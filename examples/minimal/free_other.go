//go:build !linux

package main

import "errors"

func free(string) (int64, error) { return 0, errors.ErrUnsupported }
