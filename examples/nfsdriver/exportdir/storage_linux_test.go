package exportdir

import (
	"testing"

	"github.com/csikit/csikit/examples/nfsdriver/storage"
	"github.com/csikit/csikit/examples/nfsdriver/storage/storagetest"
)

func TestStorage(t *testing.T) {
	open := map[string]func(t *testing.T) storage.Backend{
		"with known exports": func(t *testing.T) storage.Backend {
			c, _ := newLocalController(t, testExport)
			return c.list()
		},
		"without": func(t *testing.T) storage.Backend {
			c, _ := newLocalController(t)
			return c.backend()
		},
	}
	for name, open := range open {
		t.Run(name, func(t *testing.T) {
			storagetest.Run(t, storagetest.Config{Open: open, Parameters: map[string]string{"server": "nas", "share": "/srv"}, Size: 1 << 20})
		})
	}
}
