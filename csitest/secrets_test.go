package csitest

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// A secret is planted in every request of CSI that has a field for one, whatever the
// rule that searches for it.
func TestPlantedEverywhere(t *testing.T) {
	target, cfg := reference(t, defect{})
	cfg.Rules = []string{"secrets.not-logged"}
	report, err := Check(t.Context(), target, cfg)
	if err != nil {
		t.Fatal(err)
	}
	planted := map[protoreflect.Name]bool{}
	for _, call := range report.Calls {
		if r, ok := call.Request.(interface{ GetSecrets() map[string]string }); ok && r.GetSecrets()[plantedKey] != "" {
			planted[call.Request.ProtoReflect().Descriptor().Name()] = true
		}
	}
	n := 0
	protoregistry.GlobalTypes.RangeMessages(func(m protoreflect.MessageType) bool {
		if d := m.Descriptor(); d.Parent().FullName() == "csi.v1" && d.Fields().ByName("secrets") != nil {
			if n++; !planted[d.Name()] {
				t.Errorf("no secret in any %s", d.Name())
			}
		}
		return true
	})
	if n < 15 {
		t.Errorf("%d requests with secrets are known, want those of CSI", n)
	}
}

// The run's secrets go into requests that a rule sends several times concurrently.
func TestSecretsInParallel(t *testing.T) {
	target, cfg := reference(t, defect{})
	cfg.Rules, cfg.Secrets = []string{"controller.create.parallel", "controller.create.idempotent", "secrets."}, map[string]string{"password": "x"}
	report, err := Check(t.Context(), target, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range report.ResultsWith(Failed) {
		t.Errorf("%s: %v", x.Rule.ID, x.Failures)
	}
	for _, call := range report.Calls {
		if r, ok := call.Request.(interface{ GetSecrets() map[string]string }); ok && r.GetSecrets()["password"] == "" {
			t.Errorf("%s without the run's secrets", call.Method)
		}
	}
}
