// Package csitest finds what is wrong with a CSI driver, in any language, by
// calling it as container orchestrators do and looking at what it did.
//
// [Check] is the engine: it starts or dials the driver, asks what it can do, runs
// every rule of [Rules] that applies, cleans up, and returns a [Report]. [Run] does
// the same as subtests of a Go test; the program csicheck does it for a driver
// that runs.
//
//	func TestCSI(t *testing.T) {
//		csitest.Run(t, csitest.Target{
//			Endpoint: "unix:///tmp/csi.sock",
//			Start:    func() *exec.Cmd { return exec.Command("./driver", "-endpoint", "unix:///tmp/csi.sock") },
//		}, csitest.Config{})
//	}
//
// A rule ends in one of five ways. It passed or failed. It does not apply, because
// the driver lacks a capability that it needs, or does not offer what it is about.
// It was not run, because the run lacks something, such as a command to restart the
// driver: the report names what would run it. Or it is broken, which is a mistake in
// this package.
//
// [Walk] leads a few volumes through their life and tells about it, [Load] many at
// once, and [Torture] kills the driver at random moments meanwhile.
//
// Everything received is recorded and validated with csispec; the rules that begin
// with "response." and "status." judge the record of all the other rules.
//
// # When not to use it
//
// Not against storage whose data matters: volumes are made, written and deleted.
// Whatever is made carries [Config.Prefix]; a driver that lists volumes of others
// is refused unless [Config.ForeignVolumes] is set.
//
// # How to write a rule
//
// Put it into the table of its area, in the file rules_AREA.go; a new area's table
// goes into the list of [Rules]. It is a literal with a function:
//
//	{
//		ID: "controller.delete.idempotent", Level: Must, Spec: "DeleteVolume",
//		Title: "a volume that is deleted already is deleted again with OK",
//		Why:   "The CO repeats DeleteVolume when it did not hear the answer …",
//		Needs: needs(createVolume),
//		check: func(c *Case) {
//			v := c.volume()                                       // made, or the rule fails
//			send(c, c.Controller.DeleteVolume, v.deleteRequest()).ok()
//			send(c, c.Controller.DeleteVolume, v.deleteRequest()).ok()
//		},
//	},
//
// [send] calls an RPC. Its answer is judged by ok, by wants(codes…), or by hand.
// The first that is not as wanted ends the rule, and the failure shows what was
// sent, what came back, and what was wanted. c.fail ends the rule for a reason of
// its own, c.error notes one and goes on, c.excuse ends it because the driver
// need not offer what the rule is about.
//
// A volume has a request for every RPC (attachRequest, stageRequest,
// publishRequest …) with kubelet's paths, to be changed and sent, and a method for
// every step (attach, stage, publish, unpublish, unstage, detach, delete; up does
// the first three) that is repeated as kubelet repeats it and must succeed. Steps
// for which the driver has no capability are skipped. c.snapshot, c.restart,
// c.parallel, c.name and c.log do what they say; c.has asks for a capability.
//
// No rule cleans up: the recorder remembers what every call may have made, and
// undoes it after the rule, whichever way that ended.
//
// Needs are capabilities and facilities (needs.go). A rule must fail for the breach
// of its sentence and pass for everything else that the specification allows: accept
// every code that it leaves to the plugin. Where it has a MAY, there is no rule.
// Every rule has a case in defects_AREA_test.go: the reference driver with a defect
// that just this rule finds.
//
// # Concurrency, privileges, kernel
//
// Check may be called concurrently for different drivers. Rules run one after the
// other. No privilege is needed for the rules about answers; those that look at
// mounts ([Config.Kernel]) need Linux, root, and the driver's mounts visible to
// this process.
package csitest
