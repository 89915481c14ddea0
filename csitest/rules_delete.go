package csitest

import "google.golang.org/grpc/codes"

var deleteRules = []Rule{
	{
		ID: "controller.delete.idempotent", Level: Must, Spec: "DeleteVolume",
		Title: "a volume that is already deleted, or never existed, is deleted with OK",
		Why:   "The CO retries DeleteVolume when it did not receive the answer. An error would keep the PersistentVolume forever.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			send(c, c.Controller.DeleteVolume, v.deleteRequest()).ok()
			send(c, c.Controller.DeleteVolume, v.deleteRequest()).ok()
			v.id = c.name()
			send(c, c.Controller.DeleteVolume, v.deleteRequest()).ok()
		},
	},
	{
		// Whether the ID is another one or the same again: what answers OK to DeleteVolume is gone.
		ID: "controller.delete.again", Level: Must, Spec: "DeleteVolume",
		Title: "a volume that is created again under the name of a deleted one is deleted as well",
		Why: "A driver that remembers deletions by name, or by an ID that follows from it, answers OK and deletes nothing: the storage fills " +
			"with volumes that nobody knows.",
		Needs: needs(createVolume),
		check: func(c *ruleRun) {
			v := c.volume()
			v.delete()
			again := c.volumeOf(v.made, step(c, c.Controller.CreateVolume, v.made).GetVolume())
			again.delete()
			send(c, c.Controller.ValidateVolumeCapabilities, again.validateRequest()).wants(codes.NotFound)
			if c.has(listVolumes) {
				c.eventually(func() {
					if entryOf(c.list(0), again.id) != nil {
						c.error("no deleted volume in the list", "%s is there", again.id)
					}
				})
			}
		},
	},
	{
		// The row "Volume in use" is about a volume that "could not be deleted because it is in use". No
		// sentence says that it must not be deleted, so that this is advice.
		ID: "controller.delete.attached", Level: Should, Spec: "DeleteVolume",
		Title: "a volume that is published to a node is not deleted: FAILED_PRECONDITION",
		Why:   "The pod would lose its data while it runs. The CO backs off and tries again when the volume is no longer in use.",
		Needs: needs(createVolume, attachVolume),
		check: func(c *ruleRun) {
			v := c.volume().attach()
			send(c, c.Controller.DeleteVolume, v.deleteRequest()).wants(codes.FailedPrecondition)
			v.attach() // it is still there
		},
	},
}
