package csispec

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestGeneratedFromThisSpec fails when the csi.proto of the spec module differs, even in a
// comment, from the one from which the code was generated.
func TestGeneratedFromThisSpec(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/container-storage-interface/spec").Output()
	if err != nil {
		t.Fatal(err)
	}
	proto, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "csi.proto"))
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(proto); hex.EncodeToString(sum[:]) != protoSHA256 {
		t.Error("csi.proto is not the one that csispec was generated from: run go generate ./csispec, then read what changed")
	}
}
