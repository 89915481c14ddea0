//go:build !linux

package csitest

import "errors"

var errNotLinux = errors.New("csitest: mounts and devices can be checked only on Linux")

// A usage is what statfs returns.
type usage struct{ total, available, inodes, freeInodes int64 }

func statfs(string) (usage, error)             { return usage{}, errNotLinux }
func deviceNumber(string) string               { return "" }
func owner(string) (gid, mode uint32, _ error) { return 0, 0, errNotLinux }
func deviceOf(string) uint64                   { return 0 }
func bindFile(_, _ string) (func(), error)     { return nil, errNotLinux }
func mountID(string) uint64                    { return 0 }
func peer(string) int                          { return 0 }
