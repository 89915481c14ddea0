package csikit

import (
	"archive/zip"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The three ways in that README.md begins with, with its commands as they are written: github.com
// and the module proxy have this tree.
func TestReadmeWaysIn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("csicheck's line has sudo: run as root")
	}
	home, err := os.MkdirTemp("", "w") // short: a socket is made below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	bin := filepath.Join(home, "bin")
	clone := filepath.Join(home, "github")
	copyTree(t, clone)
	proxy := filepath.Join(home, "proxy")
	for path, dir := range map[string]string{"github.com/csikit/csikit": ".", "github.com/csikit/csikit/nodeops/fastmount": "nodeops/fastmount"} {
		serveModule(t, proxy, path, filepath.Join(clone, dir))
	}
	for name, script := range map[string]string{
		"sudo": `exec "$@"`,
		// The driver of a reader: any will do.
		"driver": `exec "$0.minimal" -dir "$HOME/volumes" "$@"`,
	} {
		writeFile(t, filepath.Join(bin, name), "#!/bin/sh\n"+script+"\n", 0o755)
	}
	goTool(t, "examples/minimal", "build", "-o", filepath.Join(bin, "driver.minimal"), ".")
	if err := os.Mkdir(filepath.Join(home, "volumes"), 0o700); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "HOME="+home, "PATH="+bin+":"+os.Getenv("PATH"), "GOPATH=", "GOBIN=", "GOWORK=off",
		"GOMODCACHE="+goEnv(t, "GOMODCACHE"), "GOCACHE="+goEnv(t, "GOCACHE"), "GOFLAGS=",
		"GOPROXY=file://"+proxy+","+goEnv(t, "GOPROXY"), "GONOSUMDB=github.com/csikit/*", "GOTOOLCHAIN=local",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url."+clone+".insteadOf", "GIT_CONFIG_VALUE_0=https://github.com/csikit/csikit")
	t.Cleanup(func() { forget(t, goEnv(t, "GOMODCACHE")) })
	blocks := shellBlock.FindAllStringSubmatch(readPage(t, "README.md"), -1)
	commands := func(n int, dir string) {
		t.Helper()
		command := strings.ReplaceAll(blocks[n][1], "unix:///tmp/csi.sock", "unix://"+home+"/csi.sock")
		if !strings.Contains(command, "go ") {
			t.Fatalf("no way in: %s", command)
		}
		cmd := exec.Command("sh", "-e", "-c", command)
		cmd.Dir, cmd.Env = dir, env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s%v\n%s", command, err, out)
		}
		t.Logf("%s%s", command, out[max(0, len(out)-400):])
	}
	t.Run("check", func(t *testing.T) {
		commands(0, bin)
	})
	t.Run("import", func(t *testing.T) {
		dir := filepath.Join(home, "import")
		snippet := goBlock.FindStringSubmatch(readPage(t, "README.md"))[1]
		writeFile(t, filepath.Join(dir, "go.mod"), "module example.com/driver\n\ngo 1.24.0\n", 0o600)
		goIn(t, dir, env, "get", "k8s.io/mount-utils@v0.32.13")
		commands(1, dir)
		writeFile(t, filepath.Join(dir, "main.go"), `package main

import (
	"github.com/csikit/csikit/nodeops/fastmount"
	"k8s.io/mount-utils"
	"k8s.io/utils/exec"
)

func main() {
	`+snippet+`
	_ = mounter
}
`, 0o600)
		goIn(t, dir, env, "vet", ".")
	})
	t.Run("copy", func(t *testing.T) {
		dir := filepath.Join(home, "copy")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		commands(2, dir)
	})
}

// notReleased is unique, as others may run this test with the same module cache.
var notReleased = fmt.Sprintf("v0.0.1-readme.%d", os.Getpid())

// serveModule adds a module to a proxy of files: https://go.dev/ref/mod#module-proxy.
func serveModule(t *testing.T, proxy, path, dir string) {
	t.Helper()
	at := filepath.Join(proxy, path, "@v")
	mod := readPage(t, filepath.Join(dir, "go.mod"))
	writeFile(t, filepath.Join(at, "list"), notReleased+"\n", 0o600)
	writeFile(t, filepath.Join(at, notReleased+".info"), fmt.Sprintf(`{"Version":%q,"Time":"2026-01-01T00:00:00Z"}`, notReleased), 0o600)
	writeFile(t, filepath.Join(at, notReleased+".mod"), mod, 0o600)
	f, err := os.Create(filepath.Join(at, notReleased+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z := zip.NewWriter(f)
	err = filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() { // a nested module is not part of it
			_, nested := os.Stat(filepath.Join(name, "go.mod"))
			if d.Name() == ".git" || name != dir && nested == nil {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		w, err := z.Create(path + "@" + notReleased + "/" + filepath.ToSlash(rel))
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
}

// forget removes the release that does not exist from the module cache.
func forget(t *testing.T, cache string) {
	t.Helper()
	for _, pattern := range []string{
		"github.com/csikit/csikit@" + notReleased, "github.com/csikit/csikit/*/*@" + notReleased,
		"cache/download/github.com/csikit/csikit/@v/*", "cache/download/github.com/csikit/csikit/*/*/@v/*",
	} {
		found, err := filepath.Glob(filepath.Join(cache, pattern))
		if err != nil {
			t.Error(err)
		}
		for _, name := range found {
			if base := filepath.Base(name); !strings.Contains(base, notReleased) && base != "list" {
				continue // a real one; the list is fetched again when it is needed
			}
			if err := os.RemoveAll(name); err != nil {
				t.Error(err)
			}
			for dir := filepath.Dir(name); dir != cache && os.Remove(dir) == nil; dir = filepath.Dir(dir) { // while empty
			}
		}
	}
}

func writeFile(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	return strings.TrimSpace(string(goOutput(t, ".", "env", name)))
}

func goIn(t *testing.T, dir string, env []string, args ...string) {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = dir, env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %v: %v\n%s", args, err, out)
	}
}
