package csitest

import "google.golang.org/grpc/codes"

var deleteRules = []Rule{
	{
		ID: "controller.delete.idempotent", Level: Must, Spec: "DeleteVolume",
		Title: "a volume that is deleted already, or never was, is deleted with OK",
		Why:   "The CO repeats DeleteVolume when it did not hear the answer. An error would keep the PersistentVolume for ever.",
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
		ID: "controller.delete.attached", Level: Should, Spec: "DeleteVolume",
		Title: "a volume that is published to a node is not deleted: FAILED_PRECONDITION",
		Why:   "The pod's data would vanish below it. The CO backs off and tries again when the volume is no longer in use.",
		Needs: needs(createVolume, attachVolume),
		check: func(c *ruleRun) {
			v := c.volume().attach()
			send(c, c.Controller.DeleteVolume, v.deleteRequest()).wants(codes.FailedPrecondition)
			v.attach() // it is still there
		},
	},
}
