package exportdir

import (
	"flag"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/csikit/csikit/examples/nfsdriver/share"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
)

func parse(args string) (*Provider, error) {
	p, fs := New(), flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	p.Flags(fs)
	err := fs.Parse(strings.Fields(args))
	if err == nil {
		err = p.Check()
	}
	return p, err
}

// Only known exports can be listed.
func TestSettings(t *testing.T) {
	p, err := parse("")
	if _, lists := p.Type().(storage.Lister); err != nil || lists || p.mountDir != "/run/nfsdriver" {
		t.Errorf("%+v, %v, lists: %t", p, err, lists)
	}
	p, err = parse("-exports=nas:/b")
	_, lists := p.Type().(storage.Lister)
	_, snapshots := p.Type().(storage.SnapshotLister)
	if err != nil || !lists || !snapshots || !slices.Equal(p.known, []share.Export{{Server: "nas", Share: "/b"}}) {
		t.Errorf("%+v, %v, lists: %t %t", p, err, lists, snapshots)
	}
	for args, want := range map[string]string{
		"-mount-dir rel":              `-mount-dir "rel"`,
		"-exports nas":                "server:/share",
		"-exports nas:/a,soft":        "only mount options needed to reach the server",
		"-inline-exports nas:/a,soft": "only mount options needed to reach the server",
	} {
		if _, err := parse(args); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want one line with %q", args, err, want)
		}
	}
}
