package csiserver

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

type (
	byPointer struct{ csi.UnimplementedNodeServer }
	byValue   struct {
		csi.UnimplementedNodeServer
		_ [9]int
	}
	base     struct{ byPointer }
	deep     struct{ *base }
	facade   struct{ csi.NodeServer }
	shadowed struct {
		csi.UnimplementedNodeServer // hides what is deeper down
		*base
	}
	noStub struct{ csi.UnsafeNodeServer }
)

func (*byPointer) NodeStageVolume(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return nil, nil
}

func (byValue) NodeStageVolume(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return nil, nil
}

func TestIsStub(t *testing.T) {
	for _, tt := range []struct {
		service any
		want    bool // of NodeStageVolume; NodeUnstageVolume is a stub in all but the last
	}{
		{csi.UnimplementedNodeServer{}, true},
		{&csi.UnimplementedNodeServer{}, true},
		{&byPointer{}, false},
		{byValue{}, false},
		{&byValue{}, false},
		{&base{}, false},
		{deep{&base{}}, false},
		{&deep{&base{}}, false},
		{facade{&byPointer{}}, false},
		{&facade{deep{&base{}}}, false},
		{facade{csi.UnimplementedNodeServer{}}, true},
		{&shadowed{base: &base{}}, true},
	} {
		for method, want := range map[string]bool{"NodeStageVolume": tt.want, "NodeUnstageVolume": true} {
			if got := isStub(reflect.ValueOf(tt.service), method); got != want {
				t.Errorf("%T.%s: %v, want %v", tt.service, method, got, want)
			}
		}
	}
	for _, unknown := range []any{nil, (*byPointer)(nil), facade{}, &facade{}, deep{}, noStub{}, func() {}} {
		if isStub(reflect.ValueOf(unknown), "NodeStageVolume") && !reflect.ValueOf(unknown).IsZero() {
			t.Errorf("%T: a stub", unknown)
		}
	}
}

// TestPromisedCalls compares the tables with the specification: the section of each
// RPC says for which capability it must be implemented.
func TestPromisedCalls(t *testing.T) {
	if _, err := os.Stat("stubs.go"); err != nil {
		t.Skip("not run in the directory of the package, so the go command does not find the spec module")
	}
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/container-storage-interface/spec").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "spec.md"))
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, s := range strings.Split(string(text), "\n#### ")[1:] {
		title, body, _ := strings.Cut(s, "\n")
		sections[strings.Trim(title, "`")] = strings.Join(strings.Fields(strings.ReplaceAll(body, "`", "")), " ")
	}
	check := func(capability string, calls []string) {
		for _, c := range calls {
			must := regexp.MustCompile(`MUST implement this (` + c + ` )?RPC call if (it|plugin|the plugin) has (the )?` + capability + `\b`)
			if !must.MatchString(sections[c]) {
				t.Errorf("spec.md does not require %s for %s", c, capability)
			}
		}
	}
	for capability, calls := range controllerCalls {
		check(capability.String(), calls)
	}
	for capability, calls := range nodeCalls {
		check(capability.String(), calls)
	}
	for capability, calls := range groupCalls {
		check(capability.String(), calls)
	}
	methods := methodsOfCSI()
	for _, c := range metadataCalls {
		if methods[c] == "" || strings.Contains(sections[c], "MUST implement this") {
			t.Errorf("%s does not exist, or must be implemented", c)
		}
	}
}
