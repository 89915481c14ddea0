package memory

import (
	"flag"
	"testing"

	"github.com/csikit/csikit/examples/nfsdriver/storage"
	"github.com/csikit/csikit/examples/nfsdriver/storage/storagetest"
)

func TestStorage(t *testing.T) {
	storagetest.Run(t, storagetest.Config{
		Open: func(t *testing.T) storage.Backend {
			p, flags := New(), flag.NewFlagSet("", flag.ContinueOnError)
			p.Flags(flags)
			if err := flags.Parse([]string{"-dir", t.TempDir()}); err != nil {
				t.Fatal(err)
			}
			return p
		},
		Parameters: map[string]string{"server": "server", "share": "/a"},
		Size:       1 << 20,
	})
}
