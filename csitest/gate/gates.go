package gate

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
)

const (
	gateUserNS     = "userns"
	gateRoot       = "root"
	gateTools      = "tools"
	gateCapability = "capability"
	gateModules    = "modules"
)

var gates = []string{gateUserNS, gateRoot, gateTools, gateCapability, gateModules}

var errNoMain = errors.New("call gate.Main from TestMain: without it this would mount in the host's namespace")

var (
	userNS = sync.OnceValue(func() error { return mayMount(probeUserNS) })
	root   = sync.OnceValue(func() error { return mayMount(probeRoot) })
)

// UserNS lets the test continue if tmpfs and bind mounts are possible here: root, or
// a user namespace that grants CAP_SYS_ADMIN over its own mount namespace. Block
// file systems need Root.
func UserNS(t testing.TB) {
	t.Helper()
	decide(t, gateUserNS, userNS())
}

// Root lets the test continue if a loop device can be configured and a block
// file system mounted. It does not promise every capability of root: see
// Capability.
func Root(t testing.TB) {
	t.Helper()
	decide(t, gateRoot, root())
}

// Tools lets the test continue if each of the programs is on PATH, to which Main
// adds /usr/sbin and /sbin: that is where mkfs lives, and the PATH of ordinary
// users often lacks them.
func Tools(t testing.TB, names ...string) {
	t.Helper()
	var missing []string
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	var err error
	if len(missing) > 0 {
		err = fmt.Errorf("%s not found on PATH %s: install it or add its directory", strings.Join(missing, ", "), os.Getenv("PATH"))
	}
	decide(t, gateTools, err)
}

// Capability lets the test continue if the process holds each of the capabilities
// (unix.CAP_SYS_RESOURCE and its like) effectively and in the initial user
// namespace, where kernel code that calls capable() expects them.
func Capability(t testing.TB, caps ...int) {
	t.Helper()
	decide(t, gateCapability, checkCapabilities(caps))
}

// Modules lets the test continue if each of these parts of the kernel is there, loaded
// now where it is a module: nfsd, dm_flakey, scsi_debug and their like. It stays loaded.
func Modules(t testing.TB, names ...string) {
	t.Helper()
	var missing []error
	for _, name := range names {
		if err := loadModule(name); err != nil {
			missing = append(missing, err)
		}
	}
	decide(t, gateModules, errors.Join(missing...))
}

func mayMount(probe func() error) error {
	switch {
	case !surroundings.main:
		return errNoMain
	case surroundings.mount != nil:
		return surroundings.mount
	}
	return probe()
}

func decide(t testing.TB, gate string, missing error) {
	t.Helper()
	// Read here and not in Main: go test caches a result together with the
	// variables that were read while tests ran.
	must, err := required()
	switch {
	case err != nil:
		t.Fatal(err)
	case missing == nil:
	case errors.Is(missing, errNoMain):
		t.Fatalf("gate %s: %v", gate, missing)
	case slices.Contains(must, gate):
		t.Fatalf("gate %s, required by %s: %v", gate, envRequire, missing)
	default:
		skips.add(gate, t.Name())
		t.Skipf("gate %s: %v", gate, missing)
	}
}

// required returns the gates whose skip is a failure.
func required() ([]string, error) {
	var must []string
	for word := range strings.SplitSeq(os.Getenv(envRequire), ",") {
		word = strings.TrimSpace(word)
		switch {
		case word == "":
		case slices.Contains(gates, word):
			must = append(must, word)
		default:
			return nil, fmt.Errorf("%s: unknown gate %q, want some of %s", envRequire, word, strings.Join(gates, ","))
		}
	}
	return must, nil
}

var skips tally

// A tally counts the tests that each gate skipped.
type tally struct {
	mu    sync.Mutex
	tests map[string]map[string]bool
}

func (y *tally) add(gate, test string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.tests == nil {
		y.tests = map[string]map[string]bool{}
	}
	if y.tests[gate] == nil {
		y.tests[gate] = map[string]bool{}
	}
	y.tests[gate][test] = true
}

func (y *tally) print() {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, gate := range gates {
		if n := len(y.tests[gate]); n > 0 || testing.Verbose() {
			fmt.Fprintf(os.Stderr, "gate %s skipped %d tests\n", gate, n)
		}
	}
}
