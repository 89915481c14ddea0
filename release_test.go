package csikit

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// make release in a clone: it tags all modules or nothing.
func TestRelease(t *testing.T) {
	clone := filepath.Join(t.TempDir(), "clone")
	run := func(name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Dir = clone
		cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com",
			"GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(name string, args ...string) string {
		t.Helper()
		out, err := run(name, args...)
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return out
	}
	copyTree(t, clone)

	head := must("git", "rev-parse", "HEAD")
	refused := func(what, reason string, env, version string) {
		t.Helper()
		out, err := run("env", env, "hack/release.sh", version)
		if err == nil || !strings.Contains(out, reason) {
			t.Errorf("%s: %v, want an error with %q:\n%s", what, err, reason, out)
		}
	}
	unchanged := func() {
		t.Helper()
		if got := must("git", "rev-parse", "HEAD"); got != head {
			t.Error("there is a commit")
		}
		if got := must("git", "tag"); got != "" {
			t.Errorf("tags: %s", got)
		}
		if got := must("git", "status", "--porcelain"); got != "" {
			t.Errorf("changes: %s", got)
		}
	}
	refused("no version", "want a version", "CHECK=true", "1.0")
	refused("a major version that the module paths lack", "want a version", "CHECK=true", "v2.0.0")
	if err := os.WriteFile(clone+"/new", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("a dirty tree", "not clean", "CHECK=true", "v0.1.0")
	if err := os.Remove(clone + "/new"); err != nil {
		t.Fatal(err)
	}
	refused("a red check", "nothing is tagged", "CHECK=false", "v0.1.0")
	unchanged()

	must("env", "CHECK=true", "hack/release.sh", "v0.1.0")
	want := "examples/blockdriver/v0.1.0\nexamples/minimal/v0.1.0\nexamples/nfsdriver/v0.1.0\nnodeops/fastmount/v0.1.0\nv0.1.0\n"
	if got := must("git", "tag"); got != want {
		t.Errorf("tags\n%s\nwant\n%s", got, want)
	}
	for _, module := range []string{"examples/blockdriver", "examples/minimal", "examples/nfsdriver", "test/fastmount", "test/kubelet"} {
		if got := must("git", "show", "v0.1.0:"+module+"/go.mod"); !strings.Contains(got, "github.com/csikit/csikit v0.1.0\n") {
			t.Errorf("%s does not require the release:\n%s", module, got)
		}
	}
	refused("a tag that exists", "exists", "CHECK=true", "v0.1.0")
}

// copyTree makes dir a repository with one commit: this tree as it is, committed or not.
func copyTree(t *testing.T, dir string) {
	t.Helper()
	if _, err := os.Stat(".git"); err != nil {
		t.Skipf("not a git work tree: %v", err)
	}
	script := `mkdir -p "$1" && git ls-files -co --exclude-standard -z | tar -cf - --null --files-from=- --ignore-failed-read | tar -C "$1" -xf - &&
cd "$1" && git init -q && git add -A && git -c user.name=t -c user.email=t@example.com commit -qm all`
	if out, err := exec.Command("sh", "-c", script, "sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
