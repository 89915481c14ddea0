//go:build !linux

package main

// isolate does nothing: there are no mount namespaces.
func isolate([]string) {}
