//go:build linux

package main

import "time"

// A job is one package's tests in the guest.
type job struct {
	pkg     string        // its directory, from the root of the repository
	run     string        // -test.run
	long    bool          // only run by make torture
	kernels []string      // nil: all
	timeout time.Duration // for all tests of the job, under emulation
}

// table lists the tests to run in the guest. Add a line for tests that need what
// developers' machines lack; they are gated by package csitest/gate, and every gate is
// required here, so that a test that would be skipped fails.
//
// A binary runs in its package's directory, as root, with TMPDIR on a tmpfs.
var table = []job{
	{pkg: "./csitest/nfsd", kernels: []string{"6.12"}, timeout: 5 * time.Minute},
	{pkg: "./internal/mountapi", kernels: []string{"6.1"}, timeout: 5 * time.Minute},
	{pkg: "./nodeops", run: "^(TestNFS|TestMapper|TestLUKS|TestSCSI)", kernels: []string{"6.12"}, timeout: 10 * time.Minute},
	{pkg: "./nodeops", run: "^(TestNFS$|TestMapper|TestLUKS|TestSCSI)", kernels: []string{"6.1"}, timeout: 10 * time.Minute},
	// Developers' kernels cover the code paths for 6.12.
	{pkg: "./nodeops", run: "^(TestStagePublishRoundTrip|TestExpand|TestShutDownFilesystem|TestConflictsListTheDifferences|" +
		"TestBlock|TestUnpublishOfAHungMount)$", kernels: []string{"6.1"}, timeout: 10 * time.Minute},
	// Growing a mounted ext4 needs CAP_SYS_RESOURCE, which developers' machines may lack. Only
	// in one process: two would not test more of this kernel, and take as long again.
	{pkg: "./examples/blockdriver/filepool", run: "^TestRules(OfGrowthOnline)?$/^(split=false|block|xfs|ext4)$", kernels: []string{"6.12"}, timeout: 10 * time.Minute},
	{pkg: "./examples/blockdriver/filepool", run: "^TestDM", kernels: []string{"6.12"}, timeout: 20 * time.Minute},
	{pkg: "./luks", run: "^TestDM", kernels: []string{"6.12"}, timeout: 15 * time.Minute},
	{pkg: "./luks", run: "^TestDM(Lifecycle|ForeignMapping|Undo)$", kernels: []string{"6.1"}, timeout: 10 * time.Minute},
	// csi-sanity can run once in a process.
	{pkg: "./examples/nfsdriver/exportdir", run: "TestNFS(Client|Sanity|Rules)$", kernels: []string{"6.12"}, timeout: 15 * time.Minute},
	{pkg: "./examples/nfsdriver/exportdir", run: "TestNFS(Client|Tree|ConsistentCopy|Container|BadInput|Faults|Kills)", kernels: []string{"6.1"}, timeout: 15 * time.Minute},

	{pkg: "./examples/nfsdriver/exportdir", run: "TestNFS(Tree|ConsistentCopy|BadInput|Faults|Kills|RulesTorture)", kernels: []string{"6.12"}, timeout: 20 * time.Minute, long: true},
	{pkg: "./nodeops", timeout: time.Hour, long: true},
	{pkg: "./test/fastmount", timeout: 20 * time.Minute, long: true},
	{pkg: "./loopdev", timeout: 20 * time.Minute, long: true},
	{pkg: "./luks", timeout: time.Hour, long: true},
}

// kernels are Debian's: the first has no statmount(2) and no listmount(2), Linux 6.8.
var kernels = []string{"6.1", "6.12"}

// require is every gate of package csitest/gate.
const require = "userns,root,tools,capability,modules"
