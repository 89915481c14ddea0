package driver

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/csikit/csikit/examples/nfsdriver/memory"
)

func TestConfig(t *testing.T) {
	env := map[string]string{
		"CSI_ENDPOINT": "unix:///env.sock", "CSIKIT_DIR": "/shares", "CSIKIT_NODE_ID": "env", "CSIKIT_SERVER_TIMEOUT": "1m",
		"CSIKIT_REGISTER": "/kubelet/csi.sock", "CSIKIT_LOG_LEVEL": "debug", "CSIKIT_DRAIN_TIMEOUT": "5s", "CSIKIT_MAX_VOLUMES": "7",
	}
	c, err := parseConfig(memory.New(), []string{"-node-id", "flag", "-mode=node"}, func(k string) string { return env[k] }, nil)
	want := config{endpoint: "unix:///env.sock", register: "/kubelet/csi.sock", registry: "/registration", mode: "node",
		serverTimeout: time.Minute, nodeID: "flag", driverName: "nfs.csikit.dev",
		maxVolumes: 7, drainTimeout: 5 * time.Second, logLevel: slog.LevelDebug, logFormat: "text"}
	if err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("config is %+v (%v), want %+v", c, err, want)
	}
}

// An invalid setting is a one-line error that names it.
func TestBadConfig(t *testing.T) {
	const good = "-endpoint unix:///s.sock -node-id n "
	for _, test := range []struct{ args, env, want string }{
		{"", "", "-endpoint (or CSI_ENDPOINT) is required"},
		{good + "-server-timeout 1ms", "", "-server-timeout 1ms"},
		{good + "-mode both", "", `-mode "both"`},
		{good + "-log-format xml", "", `-log-format "xml"`},
		{good + "-max-volumes -1", "", "-max-volumes -1"},
		{good + "-drain-timeout 0s", "", "-drain-timeout 0s"},
		{good + "-node-id " + strings.Repeat("n", 257), "", "-node-id has 257 bytes"},
		{good + "extra", "", `"extra"`},
		{good, "CSIKIT_MAX_VOLUMES=many", `CSIKIT_MAX_VOLUMES="many"`},
	} {
		name, value, _ := strings.Cut(test.env, "=")
		getenv := func(k string) string {
			if k == name {
				return value
			}
			return ""
		}
		_, err := parseConfig(memory.New(), strings.Fields(test.args), getenv, nil)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s %s: %v; want one line with %q", test.args, test.env, err, test.want)
		}
	}
}

// Where mounts do not reach the host, pods would write to the node's disk.
func TestSharedDirs(t *testing.T) {
	args := []string{"-endpoint", "unix://" + t.TempDir() + "/s", "-node-id", "n", "-mode", "node", "-shared-dirs", t.TempDir() + "/missing"}
	err := Run(t.Context(), memory.New(), args, func(string) string { return "" }, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "check propagation") {
		t.Error(err)
	}
}

func TestHelp(t *testing.T) {
	var out bytes.Buffer
	_, err := parseConfig(memory.New(), []string{"-h"}, func(string) string { return "" }, &out)
	if !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	for _, want := range []string{"nfsdriver -endpoint", "CSI_ENDPOINT", "CSIKIT_DIR", "-server-timeout", "(default: 30s)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("-h does not say %q:\n%s", want, out.String())
		}
	}
	// The spec reserves the prefix CSI_, except for the endpoint.
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "$CSI_") && !strings.Contains(line, "$CSI_ENDPOINT") {
			t.Errorf("a reserved name: %s", line)
		}
	}
}
