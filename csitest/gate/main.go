package gate

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const (
	envRequire = "CSIKIT_TEST_REQUIRE" // gates whose skip is a failure
	envRole    = "CSIKIT_TEST_ROLE"    // set by RoleCommand
	envRunDir  = "CSIKIT_TEST_RUNDIR"  // set by the outer process for the inner one
)

// surroundings is what Main found out before the first test. It is written once,
// by Main, before any test runs.
var surroundings struct {
	main  bool              // Main was called
	roles map[string]func() // what this binary can double as
	mount error             // why tests must not mount here; nil if they may
}

// An Option changes what Main does.
type Option interface{ apply(*config) }

type config struct{ roles map[string]func() }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// WithRole lets the test binary double as the program fn: started by RoleCommand
// with this name, Main calls fn instead of the tests and exits with 0 when it
// returns. fn finds its arguments in os.Args[1:] and fails by os.Exit. A role
// runs in the namespaces of the process that started it.
func WithRole(name string, fn func()) Option {
	return optionFunc(func(c *config) { c.roles[name] = fn })
}

// RoleCommand returns a command that runs this test binary in a role given to
// Main. Its environment is this process's; a caller that replaces Env must
// keep what is there. If Main does not know the role, the command's Err says so:
// without that the child would run the tests again, and their children too.
func RoleCommand(ctx context.Context, name string, args ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err == nil && surroundings.roles[name] == nil {
		err = fmt.Errorf("gate: role %q is unknown: pass gate.Role to gate.Main in TestMain", name)
	}
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Env = append(os.Environ(), envRole+"="+name)
	// So that what a role covers is counted with what the tests cover.
	if f := flag.Lookup("test.gocoverdir"); f != nil && f.Value.String() != "" {
		cmd.Env = append(cmd.Env, "GOCOVERDIR="+f.Value.String())
	}
	if err != nil {
		cmd.Err = err
	}
	return cmd
}

// Main runs the tests of m as the package comment says, and exits the process
// with their status, or with 1 if they passed but left something behind. It is
// to be the only statement of TestMain. Flags, standard streams, working
// directory, signals and coverage profiles pass through.
func Main(m *testing.M, opts ...Option) {
	c := config{roles: map[string]func(){}}
	for _, o := range opts {
		o.apply(&c)
	}
	surroundings.main = true
	surroundings.roles = c.roles

	if name, ok := os.LookupEnv(envRole); ok {
		// A role may start the tests of another binary.
		_ = os.Unsetenv(envRole)
		fn := c.roles[name]
		if fn == nil {
			fmt.Fprintf(os.Stderr, "gate: %s=%s: this test binary has no such role\n", envRole, name)
			os.Exit(2)
		}
		fn()
		os.Exit(0)
	}
	if _, err := required(); err != nil {
		fmt.Fprintf(os.Stderr, "gate: %v\n", err)
		os.Exit(2)
	}
	// The worker of a fuzz run talks to its coordinator over inherited
	// descriptors, and is in the coordinator's namespaces already.
	for _, arg := range os.Args[1:] {
		if strings.TrimLeft(arg, "-") == "test.fuzzworker" || strings.TrimLeft(arg, "-") == "test.fuzzworker=true" {
			os.Exit(m.Run())
		}
	}
	run(m)
}
