//go:build !linux

package csitest

import "os"

func createAs(podUser, *os.File, string, string) error { return errNoUsers }

func openAs(podUser, *os.File, string) error { return errNoUsers }
