package share

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
)

// The kernel itself answers: for a type that it does not have, one that it has, and, as a
// process without the right to mount, not at all.
func TestClient(t *testing.T) {
	gate.Root(t)
	for fsType, missing := range map[string]bool{"tmpfs": false, "proc": false, "no-such-fs": true} {
		var log strings.Builder
		c := NewClient(fsType, slog.New(slog.NewTextHandler(&log, nil)))
		err := c.Check(t.Context())
		if errors.Is(err, ErrNoClient) != missing || strings.Contains(log.String(), "modprobe "+fsType) != missing {
			t.Errorf("%s: %v, log: %s", fsType, err, &log)
		}
	}
}

// A client whose module is loaded later is found.
func TestClientLoadedLater(t *testing.T) {
	c := &Client{fsType: "proc", missing: true}
	if err := c.Check(t.Context()); err != nil {
		t.Error(err)
	}
	c.fsType = "pro"
	if err := c.Check(t.Context()); !errors.Is(err, ErrNoClient) {
		t.Error(err)
	}
}

// What cannot be asked is no alarm.
func TestClientThatCannotBeAsked(t *testing.T) {
	if err := (&Client{fsType: "no-such-fs"}).Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func FuzzLists(f *testing.F) {
	f.Add("nodev\tsysfs\nnodev\tnfs\nnodev\tnfs4\n\text4\n", "nfs")
	f.Add("nodev\tnfsd\n", "nfs")
	f.Add("\n\n", "")
	f.Fuzz(func(t *testing.T, text, fsType string) {
		if lists(strings.NewReader(text), fsType) && !strings.Contains(text, fsType) {
			t.Errorf("%q in %q", fsType, text)
		}
		if fsType != "" && !strings.ContainsAny(fsType, " \t\r\n\v\f\u0085\u00a0") && strings.Join(strings.Fields(fsType), "") == fsType && len(text)+len(fsType) < 1000 &&
			!lists(strings.NewReader(text+"\nnodev\t"+fsType+"\n"), fsType) {
			t.Errorf("%q is not found after %q", fsType, text)
		}
	})
}
