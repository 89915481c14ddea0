package nodeops

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/mountapi"
	"github.com/csikit/csikit/internal/oldkernel"
	"google.golang.org/grpc/codes"
)

// The operations work with the system calls of each kernel.
func TestOldKernels(t *testing.T) {
	gate.Root(t)
	tests := "^Test(EveryCallKilled|StagePublishRoundTrip|Block|Expand|ConflictsListTheDifferences|Stats|StageAfterFilesystemError|PublishDoesNotStack|TeardownIsIdempotent)$"
	if torture() {
		tests = "^Test[^O]"
	}
	oldkernel.Run(t, tests, "4.18")
}

// The driver is killed before each state-changing call of an operation, and the next one gets the
// same request: it completes it, and nothing else is left mounted.
func TestEveryCallKilled(t *testing.T) {
	for _, c := range faultCases() {
		if !slices.Contains([]string{"stage formatted ext4", "publish read-only", "publish block", "unpublish", "unstage"}, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			kills := 0
			for n := 1; ; n++ {
				f := newFixture(t, 64*mib)
				c.setup(f)
				before := len(mustTable(t))
				s := startServer(t)
				s.Arm(n)
				var a faultAnswer
				if s.enc.Encode(c.request(f)) == nil && s.dec.Decode(&a) == nil {
					if s.Killed() || a.Code != codes.OK || kills == 0 {
						t.Errorf("after %d kills: %v", kills, a)
					}
					ok(t, c.done(f))
					break
				}
				<-s.Done()
				if !s.Killed() {
					t.Fatal("the driver has ended and was not killed")
				}
				kills++
				calls := s.Calls()
				if a := startServer(t).ask(c.request(f)); a.Code != codes.OK {
					t.Errorf("after a kill before %v: %v", calls[len(calls)-1], a)
				}
				if err := c.done(f); err != nil {
					t.Errorf("after a kill before %v: %v", calls[len(calls)-1], err)
				}
				if more := len(mustTable(t)) - before; more > 1 {
					t.Errorf("after a kill before %v: %d mounts are new", calls[len(calls)-1], more)
				}
				if left, err := filepath.Glob(filepath.Join(os.TempDir(), "csikit-mount-*")); err != nil || len(left) > 0 {
					t.Errorf("after a kill before %v: left are %v, %v", calls[len(calls)-1], left, err)
				}
				if t.Failed() {
					return
				}
			}
			t.Logf("%d kills", kills)
		})
	}
}

// mustTable does not sweep, as readTable does.
func mustTable(t *testing.T) table {
	t.Helper()
	on, err := mountapi.Table()
	ok(t, err)
	return on
}
