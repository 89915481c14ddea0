//go:build !linux

package main

import "os"

func inheritOwner(*os.Root, string) error { return nil }
