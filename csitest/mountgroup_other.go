//go:build !linux

package csitest

func createAs(podUser, string, string, string) error { return errNoUsers }

func openAs(podUser, string, string) error { return errNoUsers }
