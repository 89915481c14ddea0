//go:build !linux

package csiserver

import (
	"io/fs"
	"os"
	"syscall"
	"time"
)

// lockDir only finds out whether there is a directory: these systems are for
// development, where nobody starts two plugins at once.
func lockDir(dir string, _ time.Duration) (unlock func(), err error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	return func() {}, nil
}

// socketMode does nothing: the mode cannot be set before bind.
func socketMode(fs.FileMode) func(network, address string, c syscall.RawConn) error { return nil }

// checkListening leaves the judgement to package net.
func checkListening(*os.File) error { return nil }
