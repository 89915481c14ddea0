package csitest

import (
	"fmt"
	"path"

	"google.golang.org/grpc/codes"
)

// Rules that check every recorded error.
var statusRules = []Rule{
	{
		ID: "status.message", Level: Must, Spec: "Error Scheme",
		Title: "every error has a message",
		Why:   "The message is what the user sees in the events of a pod that does not start.",
		checkCalls: eachCall(func(c *ruleRun, call *Call) {
			if call.Code() != codes.OK && call.Status.Message() == "" {
				c.breach(call, "a message that a person can read", call.responseText())
			}
		}),
	},
	{
		ID: "status.details", Level: Must, Spec: "Error Scheme",
		Title: "no error has details",
		Why:   "The field is reserved, and has carried what should not leave the driver.",
		checkCalls: eachCall(func(c *ruleRun, call *Call) {
			if n := len(call.Status.Proto().GetDetails()); n > 0 {
				c.breach(call, "empty details", call.responseText())
			}
		}),
	},
	{
		// "The status code MUST contain a canonical error code", and UNKNOWN is one: no MUST.
		ID: "status.not-unknown", Level: Should, Spec: "Error Scheme",
		Title: "no error is UNKNOWN",
		Why:   "UNKNOWN is what a Go driver answers that returns a plain error. To kubelet it is final: it forgets the volume, which may be mounted.",
		checkCalls: eachCall(func(c *ruleRun, call *Call) {
			if call.Code() == codes.Unknown {
				c.breach(call, "a code of the specification", call.responseText())
			}
		}),
	},
	{
		ID: "status.length", Level: Should, Spec: "external-attacher",
		Title: "the message of ControllerPublishVolume and ControllerUnpublishVolume has no more than 1024 bytes",
		Why:   "The API server refuses a longer one in the status of a VolumeAttachment: then the user sees no error at all.",
		checkCalls: eachCall(func(c *ruleRun, call *Call) {
			method := path.Base(call.Method)
			if n := len(call.Status.Message()); n > 1024 && (method == "ControllerPublishVolume" || method == "ControllerUnpublishVolume") {
				c.breach(call, "at most 1024 bytes", fmt.Sprintf("%d bytes: %.200s …", n, call.Status.Message()))
			}
		}),
	},
}

// maxBreaches is how many calls such a rule reports; more of one kind add nothing.
const maxBreaches = 3

func eachCall(check func(*ruleRun, *Call)) func(*ruleRun, []*Call) {
	return func(c *ruleRun, calls []*Call) {
		for _, call := range calls {
			if len(c.failures) >= maxBreaches {
				return
			}
			check(c, call)
		}
	}
}
