//go:build !linux

package gate

import (
	"errors"
	"os"
	"testing"
)

var errNotLinux = errors.New("needs Linux")

func run(m *testing.M) {
	surroundings.mount = errNotLinux
	code := m.Run()
	skips.print()
	os.Exit(code)
}

func probeUserNS() error { return errNotLinux }

func probeRoot() error { return errNotLinux }

func checkCapabilities([]int) error { return errNotLinux }

func loadModule(string) error { return errNotLinux }
