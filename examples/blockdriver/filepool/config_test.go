package filepool

import (
	"flag"
	"reflect"
	"strings"
	"testing"

	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/topology"
)

// configured is a provider with the settings of args.
func configured(t *testing.T, args ...string) (*Provider, error) {
	t.Helper()
	p := New()
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	p.Flags(flags)
	must(t, flags.Parse(args))
	return p, p.Check()
}

func TestPools(t *testing.T) {
	want := []poolConfig{
		{Name: "default", Dir: "/p"},
		{Name: "a", Dir: "/a", Segments: topology.Segments{"example.com/zone": "z1", "example.com/rack": "r"}},
		{Name: "b", Dir: "/b"},
	}
	for _, args := range [][]string{
		{"-pool", "/p; a=/a/,example.com/zone=z1,example.com/rack=r;b=/b"},
		{"-pool", "/p", "-pool", "a=/a,example.com/zone=z1,example.com/rack=r", "-pool=b=/b"},
	} {
		p, err := configured(t, args...)
		if err != nil || !reflect.DeepEqual(p.pools.list, want) || !p.HasTopology() {
			t.Errorf("%v: %+v, %v", args, p.pools, err)
		}
	}
	p, err := configured(t, "-pool", "/p")
	if err != nil || p.HasTopology() || p.limits != (policy{overcommit: 10, reserve: 5}) {
		t.Errorf("%+v, %v", p, err)
	}
}

// A bad setting stops the start with one line that names it.
func TestBadConfig(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"", "-pool (or CSIKIT_POOL) is required"},
		{"-pool /p -pool rel", `-pool "rel"`},
		{"-pool /p -pool /q", `-pool "/q": another pool has the name default`},
		{"-pool /p -pool a=/p", "has the same directory"},
		{"-pool /p -pool /q,zone=z", "write name=/q,zone=z"},
		{"-pool /p -pool a=rel", `-pool "a=rel"`},
		{"-pool /p -pool -a=/x", `the name "-a"`},
		{"-pool /p -pool a=/x,zone", `-pool "a=/x,zone"`},
		{"-pool a=/x,a.com/zone=z -pool b=/y,b.com/zone=z", "-pool and -topology"},
		{"-pool /p -overcommit -1", "-overcommit -1"},
		{"-pool /p -reserve 101", "-reserve 101"},
	} {
		_, err := configured(t, strings.Fields(test.args)...)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want one line with %q", test.args, err, test.want)
		}
	}
	// Those of the node are checked with them.
	p, err := configured(t, "-pool", "a=/x,a.com/zone=z")
	must(t, err)
	_, err = p.OpenDevices(t.Context(), storage.NodeEnv{Env: testEnv(), NodeID: "n", Topology: topology.Segments{"b.com/zone": "z"}})
	if err == nil || !strings.Contains(err.Error(), "-pool and -topology") {
		t.Error(err)
	}
}
