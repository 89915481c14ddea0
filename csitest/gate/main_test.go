package gate_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
)

func TestMain(m *testing.M) {
	gate.Main(m, gate.WithRole("echo", func() {
		fmt.Println(strings.Join(os.Args[1:], " "))
		if len(os.Args) > 1 && os.Args[1] == "fail" {
			os.Exit(7)
		}
	}))
}

func TestRole(t *testing.T) {
	out, err := gate.RoleCommand(t.Context(), "echo", "-test.v", "two").Output()
	if err != nil || string(out) != "-test.v two\n" {
		t.Errorf("role printed %q, %v", out, err)
	}
	err = gate.RoleCommand(t.Context(), "echo", "fail").Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("role that exits with 7: %v", err)
	}
}

// A child in an unknown role would run the tests, and so this one, again.
func TestUnknownRole(t *testing.T) {
	if err := gate.RoleCommand(t.Context(), "no such role").Run(); err == nil || !strings.Contains(err.Error(), "unknown") {
		t.Errorf("RoleCommand: %v", err)
	}
	cmd := gate.RoleCommand(t.Context(), "echo")
	cmd.Env = append(os.Environ(), "CSIKIT_TEST_ROLE=no such role")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "no such role") {
		t.Errorf("Main in an unknown role: %v, %s", err, out)
	}
}

func TestRoleCommandEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := gate.RoleCommand(ctx, "echo").Run(); err == nil {
		t.Error("a command ran although its context had ended")
	}
}

// A recorder is a test whose end can be checked.
type recorder struct {
	testing.TB
	skipped, failed string
}

func (r *recorder) Helper()      {}
func (r *recorder) Name() string { return "recorder" }
func (r *recorder) Skipf(format string, args ...any) {
	r.skipped = fmt.Sprintf(format, args...)
}
func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
}
func (r *recorder) Fatal(args ...any) { r.failed = fmt.Sprint(args...) }

func TestRequire(t *testing.T) {
	for _, test := range []struct{ require, tool, skipped, failed string }{
		{require: "", tool: "go-no-such-tool", skipped: "go-no-such-tool not found"},
		{require: "userns,root", tool: "go-no-such-tool", skipped: "go-no-such-tool not found"},
		{require: "userns, tools,", tool: "go-no-such-tool", failed: "go-no-such-tool not found"},
		{require: "tools"},
		{require: "tool", failed: `unknown gate "tool"`},
	} {
		t.Run(test.require+" "+test.tool, func(t *testing.T) {
			t.Setenv("CSIKIT_TEST_REQUIRE", test.require)
			r := recorder{TB: t}
			var tools []string
			if test.tool != "" {
				tools = []string{test.tool}
			}
			gate.Tools(&r, tools...)
			if !strings.Contains(r.skipped, test.skipped) || (r.skipped == "") != (test.skipped == "") {
				t.Errorf("skipped with %q, want %q", r.skipped, test.skipped)
			}
			if !strings.Contains(r.failed, test.failed) || (r.failed == "") != (test.failed == "") {
				t.Errorf("failed with %q, want %q", r.failed, test.failed)
			}
		})
	}
}

// The run as a whole fails on an unknown word, whichever gates it has.
func TestRequireUnknownWordStopsMain(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "CSIKIT_TEST_REQUIRE=ruut")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), `unknown gate "ruut"`) {
		t.Errorf("CSIKIT_TEST_REQUIRE=ruut: %v, %s", err, out)
	}
}
