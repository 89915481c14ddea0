package csikit

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The examples with a driver and a storage that are apart: what is in them for whom.
var templates = []struct {
	name     string   // of the directory below examples, and of the program
	driver   string   // the name of the driver
	embedded string   // the storage that a vendor deletes
	keep     []string // what a vendor has to understand; deletable files are not part of it
	optional []string // files of driver/ that can be deleted, each alone
	test     string   // the section of the README with a test for a storage
}{{
	name: "blockdriver", driver: "block.csikit.dev", embedded: "filepool", test: "What to change for your own storage",
	keep:     []string{"main.go", "driver/*.go", "storage/*.go"},
	optional: []string{"capacity", "encryption", "group", "health", "lifecycle", "list", "modify", "register", "snapshotmetadata", "snapshots", "telemetry"},
}, {
	name: "nfsdriver", driver: "nfs.csikit.dev", embedded: "exportdir",
	keep:     []string{"main.go", "driver/*.go", "storage/*.go"},
	optional: []string{"lifecycle", "list", "register", "snapshots", "telemetry"},
}}

// mostLines is how much a vendor who copies an example has to understand.
const mostLines = 1300

func TestTemplates(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range templates {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			example := filepath.Join("examples", x.name)
			lines := 0
			for _, pattern := range x.keep {
				files, err := filepath.Glob(filepath.Join(example, pattern))
				if err != nil || len(files) == 0 {
					t.Fatalf("%s: %v", pattern, err)
				}
				for _, file := range files {
					text, err := os.ReadFile(file)
					if err != nil {
						t.Fatal(err)
					}
					if strings.HasSuffix(file, "_test.go") {
						continue
					}
					if strings.Contains(string(text), "/"+x.embedded+`"`) && filepath.Base(file) != "main.go" {
						t.Errorf("%s imports %s", file, x.embedded)
					}
					name := strings.TrimSuffix(filepath.Base(file), ".go")
					if filepath.Base(filepath.Dir(file)) == "driver" && slices.Contains(x.optional, name) || name == "optional" {
						continue
					}
					n := bytes.Count(text, []byte("\n"))
					t.Logf("%4d %s", n, file)
					lines += n
				}
			}
			if t.Logf("%4d lines", lines); lines > mostLines {
				t.Errorf("%d lines, want at most %d", lines, mostLines)
			}

			// Copied, with the commands of its README, to a directory beside a checkout.
			dir := t.TempDir()
			if err := os.Symlink(here, filepath.Join(dir, "csikit")); err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(dir, "mydriver")
			blocks := readmeCommands(t, filepath.Join(example, "README.md"), "Copying")
			if len(blocks) != 2 {
				t.Fatalf("%d blocks of commands, want those that copy, and those that take the storage out", len(blocks))
			}
			shell(t, dir, withoutTests(t, blocks[0]))
			goTool(t, out, "vet", "./...")
			for _, name := range []string{x.name, x.driver, "csikit/examples"} {
				if left := filesWith(t, out, name); len(left) > 0 {
					t.Errorf("%q is still in %v", name, left)
				}
			}
			shell(t, out, withoutTests(t, blocks[1]))
			if left := filesWith(t, out, "/"+x.embedded+`"`); len(left) > 0 {
				t.Errorf("%s is still imported in %v", x.embedded, left)
			}
			goTool(t, out, "vet", "./...")
			if x.test != "" { // the README's test of a storage, with memory as the storage
				block := goBlock.FindStringSubmatch(strings.ReplaceAll(readmeSection(t, filepath.Join(example, "README.md"), x.test), "\n   ", "\n"))
				if block == nil {
					t.Fatalf("there is no Go in %q", x.test)
				}
				text := strings.NewReplacer("mydriver/array", "mydriver/memory", "array.", "memory.", "package array_test", "package memory_test").Replace(block[1])
				file := filepath.Join(out, "memory", "rules_test.go")
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				goTool(t, out, "vet", "./memory")
				if err := os.Remove(file); err != nil {
					t.Fatal(err)
				}
			}
			runTests(t, out)
			if os.Geteuid() == 0 { // with mounts
				goTool(t, out, "test", "-run", "^Test(Rules|Sanity|Pods.*)$", "./driver")
			}

			for _, name := range x.optional {
				without(t, out, name)
			}
			without(t, out, x.optional...)
		})
	}
}

// without checks that a copy of the module builds when files of the driver are deleted.
func without(t *testing.T, module string, names ...string) {
	t.Helper()
	out := t.TempDir()
	if err := os.CopyFS(out, os.DirFS(module)); err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	goTool(t, out, "mod", "edit", "-replace=github.com/csikit/csikit="+here)
	for _, name := range names {
		file := filepath.Join(out, "driver", name)
		if err := os.Remove(file + ".go"); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(file + "_test.go"); err != nil {
			t.Errorf("driver/%s.go has no test of its own: %v", name, err)
		}
	}
	goTool(t, out, "vet", "./...")
}

// readmeCommands returns the blocks of shell commands in a section.
func readmeCommands(t *testing.T, file, section string) (blocks []string) {
	t.Helper()
	for _, b := range shellBlock.FindAllStringSubmatch(readmeSection(t, file, section), -1) {
		blocks = append(blocks, b[1])
	}
	return blocks
}

func readmeSection(t *testing.T, file, section string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n## "+section+"\n")
	if !found {
		t.Fatalf("%s has no section %q", file, section)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	return rest
}

var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// withoutTests leaves out the last command, which runs the tests: they run without root.
func withoutTests(t *testing.T, commands string) string {
	t.Helper()
	rest, found := strings.CutSuffix(commands, "\ngo test ./...\n")
	if !found {
		t.Fatalf("the last command is not go test ./...:\n%s", commands)
	}
	return rest
}

// shell runs commands as a user types them.
func shell(t *testing.T, dir, commands string) {
	t.Helper()
	cmd := exec.Command("sh", "-e", "-c", commands)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s\n%v\n%s", commands, err, out)
	}
}

// filesWith returns the files that have the text.
func filesWith(t *testing.T, dir, text string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(text)) {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// An example directory builds by itself, and its tests that need no root pass.
func TestExamplesStandAlone(t *testing.T) {
	dirs, err := filepath.Glob("examples/*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			out := t.TempDir()
			if err := os.CopyFS(out, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			here, err := os.Getwd()
			if err != nil {
				t.Fatal(err)
			}
			// The release that go.mod requires stands here for what it will be.
			goTool(t, out, "mod", "edit", "-replace=github.com/csikit/csikit="+here)
			goTool(t, out, "vet", "./...")
			runTests(t, out)
		})
	}
}

// Files that the templates share word for word: each template stands alone, and a fix of
// one has to reach the other.
func TestExamplesShare(t *testing.T) {
	for _, name := range []string{"driver/register.go", "driver/telemetry.go"} {
		one, err := os.ReadFile(filepath.Join("examples", "blockdriver", name))
		if err != nil {
			t.Fatal(err)
		}
		other, err := os.ReadFile(filepath.Join("examples", "nfsdriver", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(one, other) {
			t.Errorf("%s of blockdriver and of nfsdriver differ", name)
		}
	}
}

// runTests runs the tests of a module; as root, under the user nobody.
func runTests(t *testing.T, module string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "x") // short: sockets are created in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	tmp := filepath.Join(dir, "t")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(tmp, 0o777)); err != nil {
		t.Fatal(err)
	}
	goTool(t, module, "test", "-c", "-o", dir+string(filepath.Separator), "./...")
	tests, err := filepath.Glob(filepath.Join(dir, "*.test*"))
	if err != nil || len(tests) == 0 {
		t.Fatalf("no tests: %v", err)
	}
	for _, test := range tests {
		args := []string{test, "-test.short", "-test.timeout=5m"}
		if os.Geteuid() == 0 {
			args = append([]string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}, args...)
		}
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = tmp
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + tmp}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", filepath.Base(test), err, out)
		}
		t.Logf("%s: %s", filepath.Base(test), bytes.TrimSpace(out))
	}
}

var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// The program in README.md compiles. TestReadmeWaysIn has the other code.
func TestReadmeBuilds(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := goBlock.FindAllSubmatch(readme, -1)
	if len(blocks) != 2 {
		t.Fatalf("README.md has %d blocks of Go code, want a line and a program", len(blocks))
	}
	for _, b := range blocks[1:] {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "main.go"), b[1], 0o600); err != nil {
			t.Fatal(err)
		}
		asModule(t, dir)
		goTool(t, dir, "vet", "./...")
	}
}

// asModule makes a directory a module that imports this one.
func asModule(t *testing.T, dir string) {
	t.Helper()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(mod), "module github.com/csikit/csikit", "module example.com/mydriver", 1) +
		"\nrequire github.com/csikit/csikit v0.0.0\nreplace github.com/csikit/csikit => " + here + "\n"
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile("go.sum")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.sum"), sum, 0o600); err != nil {
		t.Fatal(err)
	}
}

// goTool runs the go command in a module.
func goTool(t *testing.T, dir string, args ...string) {
	t.Helper()
	goOutput(t, dir, args...)
}

// goOutput is goTool that returns what the command printed.
func goOutput(t *testing.T, dir string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v: %s%s", strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return out
}
