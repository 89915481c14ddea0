// Package gate provides a test of a storage driver with the environment it needs,
// and reports what is missing instead of guessing from the uid.
//
// [Main], called from TestMain, runs the tests in a second process of the same
// test binary, inside a private mount namespace (and a user namespace, when
// the caller may not create the first one without it), with a run directory of
// its own as TMPDIR. Afterwards it compares mounts, loop devices, descriptors
// and child processes with what was there before. A leak is printed, fails the
// run even when every test passed, and is then removed. The outer process
// outlives a test binary that panics, times out or is killed, and cleans up
// after that one as well.
//
// A gate is called first in a test and tries the operation that the test is
// about to need:
//
//	[UserNS]      tmpfs and bind mounts may be made here
//	[Root]        a loop device can be configured and a block file system mounted
//	[Tools]       these programs are on PATH
//	[Capability]  these capabilities are held in the initial user namespace
//	[Modules]     the kernel has these parts, as modules or built in
//
// When the operation is refused the test is skipped with the reason. The
// environment variable CSIKIT_TEST_REQUIRE, a comma list of userns, root, tools,
// capability and modules, turns the skips of those gates into failures, so that a CI job
// cannot go green by skipping what it was set up to run. An unknown word in it
// fails the run.
//
// [WithRole] and [RoleCommand] let the test binary double as another program, such
// as a driver to be killed.
//
// # When not to use it
//
// The tests of one binary share one mount namespace: a test that mounts must
// still unmount, and two parallel tests must not mount at one path. What a test
// does to the host's devices, sysctls or network is not contained. On systems
// other than Linux Main only runs the tests, and every gate but Tools skips.
//
// # Concurrency and privileges
//
// Gates and RoleCommand may be called from parallel tests. A probe runs once per
// process. No privilege is needed: without user namespaces the tests run
// plainly, and the gates say why they skip. Any kernel that Go supports will do.
package gate
