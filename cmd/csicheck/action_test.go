//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
)

// The action passes each of its inputs to the script, and the script to csicheck.
func TestAction(t *testing.T) {
	definition, err := os.ReadFile("action.yml")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("action.sh")
	if err != nil {
		t.Fatal(err)
	}
	inputs, _, _ := strings.Cut(string(definition), "\nruns:")
	declared := regexp.MustCompile(`(?m)^  ([a-z]+):$`).FindAllStringSubmatch(inputs, -1)
	if len(declared) < 5 {
		t.Errorf("inputs %v", declared)
	}
	for _, m := range declared {
		variable := "CSICHECK_" + strings.ToUpper(m[1])
		if !strings.Contains(string(definition), fmt.Sprintf("%s: ${{ inputs.%s }}\n", variable, m[1])) || !strings.Contains(string(script), "$"+variable) {
			t.Errorf("the input %s is not used", m[1])
		}
	}

	dir := socketDir(t)
	socket, baseline := filepath.Join(dir, "csi.sock"), filepath.Join(dir, "baseline.json")
	program := gate.RoleCommand(t.Context(), "csicheck")
	wrapper := fmt.Sprintf("#!/bin/sh\nCSIKIT_TEST_ROLE=csicheck exec %s \"$@\"\n", program.Path)
	// As root already: there is no password to ask for.
	if err := os.WriteFile(filepath.Join(dir, "csicheck"), []byte(wrapper), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sudo"), []byte("#!/bin/sh\nshift\nexec \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(more ...string) (string, error) {
		cmd := exec.Command("./action.sh")
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "CSICHECK_ENDPOINT=unix://"+socket, "CSICHECK_START="+commandLine(t, socket),
			"CSICHECK_FLAGS=-kernel no -size 1048576 -rules "+keepsVolumes+","+noSecrets, "CSICHECK_BASELINE=",
			"CSICHECK_JUNIT="+filepath.Join(dir, "report.xml"), "CSICHECK_VERSION=latest")
		cmd.Env = append(slices.Clone(cmd.Env), more...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run("CSICHECK_FLAGS=-kernel no -size 1048576 -rules " + keepsVolumes + "," + noSecrets + " -json " + baseline)
	if err == nil {
		t.Error("no failure")
	}
	has(t, out, "::error", keepsVolumes)
	if report, err := os.ReadFile(filepath.Join(dir, "report.xml")); err != nil || !strings.Contains(string(report), keepsVolumes) {
		t.Errorf("the report: %v\n%s", err, report)
	}
	if out, err := run("CSICHECK_BASELINE=" + baseline); err != nil {
		t.Errorf("what failed before: %v\n%s", err, out)
	}
}
