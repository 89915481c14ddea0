package luks

import (
	"testing"

	"github.com/csikit/csikit/csitest/gate"
)

// roles are the programs that the test binary can run as; other files add theirs in init.
var roles []gate.Option

func TestMain(m *testing.M) { gate.Main(m, roles...) }

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
