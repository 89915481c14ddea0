//go:build !linux

package main

import (
	"context"
	"errors"
	"io"
)

const cageArg = "in-cage"

func inCage(context.Context, string, string, []string, io.Writer) error {
	return errors.ErrUnsupported
}

func cageMain(string, string) {}
