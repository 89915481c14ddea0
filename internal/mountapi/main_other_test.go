//go:build !linux

package mountapi

import "github.com/csikit/csikit/csitest/gate"

var roles []gate.Option
