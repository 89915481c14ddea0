//go:build !linux

package driver

func becameReadOnly(string) bool { return false }
