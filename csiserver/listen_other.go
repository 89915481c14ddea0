//go:build !linux

package csiserver

import (
	"io/fs"
	"os"
	"syscall"
	"time"
)

// lockDir only checks that the directory exists: these systems are for development,
// without concurrent starts.
func lockDir(dir string, _ time.Duration) (unlock func(), err error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	return func() {}, nil
}

// socketMode does nothing: the mode cannot be set before bind.
func socketMode(fs.FileMode) func(network, address string, c syscall.RawConn) error { return nil }

// checkListening leaves the check to package net.
func checkListening(*os.File) error { return nil }
