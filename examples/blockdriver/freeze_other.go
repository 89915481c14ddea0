//go:build !linux

package main

import (
	"context"
	"errors"
	"log/slog"
)

func (n *nodeServer) Freeze(context.Context, string) (func() error, error) {
	return nil, errors.ErrUnsupported
}

func (n *nodeServer) thawLeftovers(*pool, *slog.Logger) error { return nil }
