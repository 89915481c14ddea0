package csitest

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

var secretRules = []Rule{
	{
		ID: "secrets.not-logged", Level: Should, Spec: "Secrets Requirements",
		Title: "secrets and service-account tokens of requests are not in the log",
		Why: "Logs go where secrets must not: to files, collectors, support cases. Tokens come in volume_context, which no field option marks " +
			"(CVE-2023-2878, CVE-2024-3744).",
		Needs: needs(createVolume, driverLog),
		check: func(c *Case) {
			planted := "planted-" + rand.Text()
			create := c.createRequest()
			create.Secrets = map[string]string{"csicheck-planted": planted}
			v := c.volumeOf(create, step(c, c.Controller.CreateVolume, create).GetVolume())
			send(c, c.Controller.CreateVolume, &csi.CreateVolumeRequest{Name: c.name(), Secrets: create.Secrets}) // an error, which is logged
			if c.has(nodeService) {
				v.attach()
				if c.has(stageVolume) {
					req := v.stageRequest()
					req.Secrets = create.Secrets
					send(c, c.Node.NodeStageVolume, req).ok()
				}
				req := v.publishRequest("a")
				req.Secrets = create.Secrets
				req.VolumeContext = map[string]string{tokensKey: fmt.Sprintf(`{"":{"token":%q}}`, planted)}
				for k, value := range v.created.GetVolumeContext() {
					req.VolumeContext[k] = value
				}
				send(c, c.Node.NodePublishVolume, req)
			}
			for line := range bytes.Lines(c.log()) {
				if bytes.Contains(line, []byte(planted)) {
					c.fail("no secret in the log", "%s", strings.ReplaceAll(string(line), planted, "<THE SECRET>"))
				}
			}
		},
	},
	{
		ID: "secrets.not-in-errors", Level: Must, Spec: "Error Scheme",
		Title: "a secret of a request is not in the message of its error",
		Why:   "COs show messages to users, and keep them in events that many may read.",
		Needs: needs(createVolume),
		check: func(c *Case) {
			planted := "planted-" + rand.Text()
			create := c.createRequest()
			create.Secrets = map[string]string{"csicheck-planted": planted}
			create.VolumeCapabilities = nil
			if a := send(c, c.Controller.CreateVolume, create); strings.Contains(a.Status.Message(), planted) {
				a.wrong("a message without the secret")
			}
		},
	},
}
