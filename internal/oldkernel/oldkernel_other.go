//go:build !linux

package oldkernel

// FromEnv does nothing.
func FromEnv() {}
