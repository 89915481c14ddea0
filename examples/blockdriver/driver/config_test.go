package driver

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/csikit/csikit/examples/blockdriver/memory"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/topology"
)

func TestConfig(t *testing.T) {
	env := map[string]string{
		"CSI_ENDPOINT": "unix:///env.sock", "CSIKIT_NODE_ID": "env",
		"CSIKIT_REGISTER": "/kubelet/csi.sock", "CSIKIT_TOPOLOGY": "example.com/zone=z1",
		"CSIKIT_LOG_LEVEL": "debug", "CSIKIT_DRAIN_TIMEOUT": "5s", "CSIKIT_MAX_VOLUMES": "7",
	}
	args := []string{"-node-id", "flag", "-mode=node"}
	c, err := parseConfig(memory.New(), args, func(k string) string { return env[k] }, nil)
	want := config{endpoint: "unix:///env.sock", register: "/kubelet/csi.sock", registry: "/registration", mode: "node", topology: topology.Segments{"example.com/zone": "z1"}, nodeID: "flag", driverName: defaultName,
		maxVolumes: 7, drainTimeout: 5 * time.Second, logLevel: slog.LevelDebug, logFormat: "text"}
	if err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("config is %+v (%v), want %+v", c, err, want)
	}
	env["CSIKIT_MAX_VOLUMES"] = "many" // overridden, so it does not matter
	if _, err := parseConfig(memory.New(), append(args, "-max-volumes=7"), func(k string) string { return env[k] }, nil); err != nil {
		t.Error(err)
	}
}

// A bad setting stops the start with one line that names it.
func TestBadConfig(t *testing.T) {
	const good = "-endpoint unix:///s.sock -node-id n "
	for _, test := range []struct{ args, env, want string }{
		{"", "", "-endpoint (or CSI_ENDPOINT) is required"},
		{good + "-topology a.com/zone=z,b.com/zone=z", "", "-topology"},
		{good + "-mode both", "", `-mode "both"`},
		{good + "-log-format xml", "", `-log-format "xml"`},
		{good + "-log-level loud", "", "log-level"},
		{good + "-max-volumes -1", "", "-max-volumes -1"},
		{good + "-max-volumes x", "", "max-volumes"},
		{good + "-drain-timeout 0s", "", "-drain-timeout 0s"},
		{good + "-node-id " + strings.Repeat("n", 257), "", "-node-id has 257 bytes"},
		{good + "extra", "", `"extra"`},
		{good + "-no-such-flag", "", "no-such-flag"},
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
	for _, want := range []string{program + " -endpoint", "CSI_ENDPOINT", "CSIKIT_NODE_ID", "-drain-timeout", "(default: 20s)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("-h does not say %q:\n%s", want, out.String())
		}
	}
	// The spec keeps CSI_ for itself, but for the endpoint.
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "$CSI_") && !strings.Contains(line, "$CSI_ENDPOINT") {
			t.Errorf("a reserved name: %s", line)
		}
	}
}

// needy is a storage with a setting that is required, and a command.
type needy struct {
	*memory.Memory
	address string
}

func (n *needy) Flags(f *flag.FlagSet) {
	f.StringVar(&n.address, "array", "", "`address` of the array (required)")
}

func (n *needy) Check() error {
	if n.address == "" {
		return errors.New("-array is required")
	}
	return nil
}

func (n *needy) Command(args []string, _ func(string) string, stdout io.Writer) (bool, error) {
	if len(args) == 0 || args[0] != "init" {
		return false, nil
	}
	fmt.Fprint(stdout, "done")
	return true, storage.ErrReported
}

func (n *needy) CommandUsage() string { return "Commands: init" }

// The settings of the storage are flags and variables as the driver's own.
func TestStorageSettings(t *testing.T) {
	n := &needy{Memory: memory.New()}
	args := []string{"-endpoint", "unix:///s.sock", "-node-id", "n"}
	if _, err := parseConfig(n, args, func(string) string { return "" }, nil); err == nil || err.Error() != "-array is required" {
		t.Error(err)
	}
	env := func(k string) string { return map[string]string{"CSIKIT_ARRAY": "a.example.com"}[k] }
	if _, err := parseConfig(n, args, env, nil); err != nil || n.address != "a.example.com" {
		t.Errorf("%q, %v", n.address, err)
	}
	var out bytes.Buffer
	if _, err := parseConfig(n, []string{"-h"}, env, &out); !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), "$CSIKIT_ARRAY") || !strings.Contains(out.String(), "Commands: init") {
		t.Errorf("%v: %s", err, out.String())
	}
	out.Reset()
	if err := Run(t.Context(), n, []string{"init"}, env, &out, io.Discard); !errors.Is(err, storage.ErrReported) || out.String() != "done" {
		t.Errorf("%v: %s", err, out.String())
	}
}
