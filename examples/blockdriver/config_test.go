package main

import (
	"bytes"
	"errors"
	"flag"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/csikit/csikit/topology"
)

func TestConfig(t *testing.T) {
	env := map[string]string{
		"CSI_ENDPOINT": "unix:///env.sock", "CSIKIT_POOL": "/env", "CSIKIT_NODE_ID": "env",
		"CSIKIT_REGISTER":  "/kubelet/csi.sock",
		"CSIKIT_LOG_LEVEL": "debug", "CSIKIT_DRAIN_TIMEOUT": "5s", "CSIKIT_MAX_VOLUMES": "7",
	}
	args := []string{"-node-id", "flag", "-mode=node"}
	c, err := parseConfig(args, func(k string) string { return env[k] }, nil)
	want := config{endpoint: "unix:///env.sock", register: "/kubelet/csi.sock", registry: "/registration", mode: "node", pools: poolFlags{[]string{"/env"}, []poolConfig{{Name: "default", Dir: "/env"}}}, overcommit: 10, reserve: 5, nodeID: "flag", driverName: "block.csikit.dev",
		maxVolumes: 7, drainTimeout: 5 * time.Second, logLevel: slog.LevelDebug, logFormat: "text"}
	if err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("config is %+v (%v), want %+v", c, err, want)
	}
	env["CSIKIT_MAX_VOLUMES"] = "many" // overridden, so it does not matter
	if _, err := parseConfig(append(args, "-max-volumes=7"), func(k string) string { return env[k] }, nil); err != nil {
		t.Error(err)
	}
}

func TestPools(t *testing.T) {
	want := []poolConfig{
		{Name: "default", Dir: "/p"},
		{Name: "a", Dir: "/a", Segments: topology.Segments{"example.com/zone": "z1", "example.com/rack": "r"}},
		{Name: "b", Dir: "/b"},
	}
	env := func(k string) string {
		return map[string]string{"CSI_ENDPOINT": "unix:///s.sock", "CSIKIT_POOL": "/p; a=/a/,example.com/zone=z1,example.com/rack=r;b=/b", "CSIKIT_TOPOLOGY": "example.com/zone=z1"}[k]
	}
	for _, args := range [][]string{nil, {"-pool", "/p", "-pool", "a=/a,example.com/zone=z1,example.com/rack=r", "-pool=b=/b"}} {
		c, err := parseConfig(append(args, "-node-id=n"), env, nil)
		if err != nil || !reflect.DeepEqual(c.pools.list, want) || c.topology["example.com/zone"] != "z1" || !c.hasTopology() {
			t.Errorf("%v: %+v, %v", args, c, err)
		}
	}
}

// A bad setting stops the start with one line that names it.
func TestBadConfig(t *testing.T) {
	const good = "-endpoint unix:///s.sock -pool /p -node-id n "
	for _, test := range []struct{ args, env, want string }{
		{"-pool /p", "", "-endpoint (or CSI_ENDPOINT) is required"},
		{"-endpoint unix:///s.sock", "", "-pool (or CSIKIT_POOL) is required"},
		{good + "-pool rel", "", `-pool "rel"`},
		{good + "-pool /q", "", `-pool "/q": another pool has the name default`},
		{good + "-pool a=/p", "", "has the same directory"},
		{good + "-pool /q,zone=z", "", "write name=/q,zone=z"},
		{good + "-pool a=rel", "", `-pool "a=rel"`},
		{good + "-pool -a=/x", "", `the name "-a"`},
		{good + "-pool a=/x,zone", "", `-pool "a=/x,zone"`},
		{good + "-pool a=/x,a.com/zone=z -topology b.com/zone=z", "", "-pool and -topology"},
		{good + "-overcommit -1", "", "-overcommit -1"},
		{good + "-reserve 101", "", "-reserve 101"},
		{good + "-mode both", "", `-mode "both"`},
		{good + "-log-format xml", "", `-log-format "xml"`},
		{good + "-log-level loud", "", "log-level"},
		{good + "-max-volumes -1", "", "-max-volumes -1"},
		{good + "-max-volumes x", "", "max-volumes"},
		{good + "-drain-timeout 0s", "", "-drain-timeout 0s"},
		{good + "-node-id " + strings.Repeat("n", 257), "", "-node-id has 257 bytes"},
		{good + "-mode controller -register /csi.sock", "", "-register is for the node plugin"},
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
		_, err := parseConfig(strings.Fields(test.args), getenv, nil)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s %s: %v; want one line with %q", test.args, test.env, err, test.want)
		}
	}
}

func TestHelp(t *testing.T) {
	var out bytes.Buffer
	_, err := parseConfig([]string{"-h"}, func(string) string { return "" }, &out)
	if !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	for _, want := range []string{"blockdriver -endpoint", "CSI_ENDPOINT", "CSIKIT_POOL", "-drain-timeout", "(default: 20s)"} {
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
