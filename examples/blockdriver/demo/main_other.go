//go:build !linux

// Command demo needs Linux.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "demo: loop devices and mounts need Linux")
	os.Exit(1)
}
