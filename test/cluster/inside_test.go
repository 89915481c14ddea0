//go:build linux

package main

import "testing"

// What each combination of flags runs: a scenario of a part on this machine's kernel, a long one,
// a suite, and the same with virtual machines.
func TestSelection(t *testing.T) {
	short, long, suite := scenario{name: "short"}, scenario{name: "long", long: true}, scenario{name: "suite", suite: true}
	for _, c := range []struct {
		flags        selection
		here, guests [3]bool
	}{
		{selection{}, [3]bool{true, false, false}, [3]bool{}},
		{selection{Run: "o"}, [3]bool{true, true, false}, [3]bool{}},
		{selection{Suite: true}, [3]bool{false, false, true}, [3]bool{}},
		{selection{Long: true}, [3]bool{true, true, true}, [3]bool{true, true, true}},
		{selection{Long: true, Suite: true}, [3]bool{false, false, true}, [3]bool{}},
		{selection{NFS: true}, [3]bool{}, [3]bool{true, false, false}},
		{selection{NFS: true, Run: "long"}, [3]bool{}, [3]bool{false, true, false}},
		{selection{NFS: true, Suite: true}, [3]bool{}, [3]bool{false, false, true}},
	} {
		for i, x := range []scenario{short, long, suite} {
			if got := c.flags.has(part{}, x); got != c.here[i] {
				t.Errorf("%+v: %s: %v", c.flags, x.name, got)
			}
			if got := c.flags.has(part{guests: true}, x); got != c.guests[i] {
				t.Errorf("%+v: %s with virtual machines: %v", c.flags, x.name, got)
			}
		}
	}
	if (selection{}).withGuests() || (selection{Suite: true}).withGuests() || !(selection{NFS: true}).withGuests() || !(selection{Long: true}).withGuests() {
		t.Error("virtual machines are prepared for scenarios without them, or are not for those with them")
	}
}
