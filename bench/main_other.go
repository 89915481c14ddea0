//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench: it measures mounts of Linux")
	os.Exit(1)
}
