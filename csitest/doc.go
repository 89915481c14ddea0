// Package csitest checks a CSI driver, written in any language, by calling it as
// container orchestrators do and verifying the results.
//
// [Check] is the engine: it starts or dials the driver, reads its capabilities, runs
// every rule of [Rules] that applies, cleans up, and returns a [Report]. [Run] does
// the same as subtests of a Go test; the program csicheck does it for a running
// driver.
//
//	func TestCSI(t *testing.T) {
//		csitest.Run(t, csitest.Target{
//			Endpoint: "unix:///tmp/csi.sock",
//			Start:    func() *exec.Cmd { return exec.Command("./driver", "-endpoint", "unix:///tmp/csi.sock") },
//		}, csitest.Config{})
//	}
//
// A rule has one of five outcomes. It passed or failed. It does not apply, because
// the driver lacks a capability that it needs. It was not run, because the run lacks a
// [Facility], such as a command that restarts the driver; the result names it. Or it is
// broken, which is a bug of this package.
//
// [Walk] takes a few volumes through their whole lifecycle and prints each step, [Load]
// takes many through it concurrently, and [Torture] kills the driver at random moments
// while workers call every RPC.
//
// Everything received is recorded and validated with csispec; the rules whose IDs begin
// with "response." and "status." check the recorded calls of all other rules.
//
// # When not to use it
//
// Not against storage whose data matters: volumes are created, written and deleted.
// The name of everything created begins with [Config.Prefix]; a driver that lists other
// volumes is refused unless [Config.ForeignVolumes] is set.
//
// # Safety for the host
//
// No rule is meant to let a bad driver do damage outside its own storage. Target and staging
// paths lie below [Config.Dir]. Hostile volume IDs are either paths that lead to a canary
// (files in a directory below Config.Dir that nothing else uses), shell fragments that create
// a file beside the canary, or names that exist nowhere. A canary that is removed, changed,
// mounted on, or returned in an answer is a finding; reads are detected only if the driver
// returns what it read. IDs such as "/", "." and ".." are never sent. A required ID or path
// is left out of a request only after a canary has shown that the driver deletes nothing
// that the field names: an empty one could be the root directory. csitest itself creates,
// writes and removes files only below its own directory, follows no symbolic link out of it,
// and removes nothing through a mount.
//
// Within its own storage a driver may do anything: a request without a required ID, which
// the specification wants refused, may delete the whole pool of a driver that does not
// check. Two risks remain. Rules that check data write to what the driver has mounted at the
// target path, whichever device or directory that is; in a directory to files whose names
// begin with csicheck-. And a driver that splits an ID at slashes and uses a component other
// than the first or the last as a name gets "..". A driver that runs in another root file
// system, such as a container, must see Config.Dir under the same path.
//
// # Concurrency, privileges, kernel
//
// Check may be called concurrently for different drivers. Rules run one after the
// other. Rules about answers need no privilege; those that check mounts
// ([Config.CheckMounts]) need Linux, root, and the driver's mounts visible to this process.
package csitest
