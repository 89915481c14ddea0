package filepool

import (
	"log/slog"
	"testing"

	"github.com/csikit/csikit/examples/blockdriver/storage"
)

func TestThawDamagedMark(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	write(t, b.file("groups", groupID("g")+extFrozen), "{")
	d := &devices{poolSet: &poolSet[*pool]{log: slog.New(slog.DiscardHandler)}, env: storage.NodeEnv{NodeID: "n"}}
	if err := d.thawLeftovers(b.pool); err != nil {
		t.Errorf("the node plugin does not start: %v", err)
	}
}
