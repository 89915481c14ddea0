package gate_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"golang.org/x/sys/unix"
)

// A package whose tests mount something hands TestMain over to Main.
func ExampleMain() {
	_ = func(m *testing.M) { // TestMain
		gate.Main(m, gate.WithRole("driver", func() { fmt.Println("I am the driver now") }))
	}
}

// A test that formats a loop device says so first.
func ExampleRoot() {
	_ = func(t *testing.T) { // TestStage
		gate.Root(t)
		gate.Tools(t, "mkfs.ext4")
	}
}

// Growing a mounted ext4 file system takes a capability that containers often
// lack.
func ExampleCapability() {
	_ = func(t *testing.T) { // TestExpandOnline
		gate.Root(t)
		gate.Capability(t, unix.CAP_SYS_RESOURCE)
	}
}

// The test binary runs as another program, which it has named in TestMain.
func ExampleRoleCommand() {
	cmd := gate.RoleCommand(context.Background(), "echo", "hello")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	fmt.Printf("%s%v\n", out, err)
	// Output:
	// hello
	// <nil>
}
