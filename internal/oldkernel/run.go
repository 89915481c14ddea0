// Package oldkernel lets tests run as on an older kernel: a seccomp filter refuses the system
// calls that came later with ENOSYS, and LOOP_CONFIGURE with EINVAL, as that kernel does. What a
// call does, and which flags it takes, stays as on the running kernel. Only tests import it.
package oldkernel

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Env names the version that [FromEnv] imitates.
const Env = "CSIKIT_TEST_KERNEL"

// Versions are the kernels worth imitating, the oldest first: those of RHEL 8 and of long term
// support, and the first with all calls that package mountapi needs.
var Versions = []string{"4.18", "5.4", "5.10", "5.14"}

// Run runs tests of the calling test's package, as -test.run selects them, in a process of their
// own on each of the kernels. CSIKIT_TORTURE=1 means all [Versions], otherwise it is those given.
func Run(t *testing.T, tests string, versions ...string) {
	t.Helper()
	if os.Getenv(Env) != "" {
		t.Skip("this is such a process")
	}
	if os.Getenv("CSIKIT_TORTURE") == "1" {
		versions = Versions
	}
	for _, v := range versions {
		t.Run(v, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run="+tests, "-test.v", "-test.timeout=10m")
			cmd.Env = append(slices.Clone(os.Environ()), Env+"="+v)
			out, err := cmd.CombinedOutput()
			passed := strings.Count(string(out), "\n--- PASS")
			if err != nil || passed == 0 {
				t.Errorf("%v, %d tests passed:\n%s", err, passed, out)
			}
			t.Logf("%d tests passed, %d were skipped", passed, strings.Count(string(out), "\n--- SKIP"))
		})
	}
}
