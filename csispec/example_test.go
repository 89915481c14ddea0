package csispec_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc/status"
)

func ExampleValidate() {
	err := csispec.Validate(&csi.NodePublishVolumeRequest{
		TargetPath: "pods/1/mount",
		VolumeCapability: &csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
	})
	fmt.Println(status.Code(err))
	violations, _ := errors.AsType[*csispec.Violations](err)
	for _, v := range violations.All {
		fmt.Printf("%-29s %-13s %s\n", v.Field, v.Rule, v.Text)
	}
	// Output:
	// InvalidArgument
	// volume_id                     required      is required
	// target_path                   path-absolute is "pods/1/mount" and must be an absolute path
	// volume_capability.access_type oneof         needs exactly one of block, mount
}

func ExampleRedact() {
	req := &csi.NodeStageVolumeRequest{
		VolumeId: "vol-1",
		Secrets:  map[string]string{"password": "hunter2"},
		VolumeContext: map[string]string{
			"share": "backup",
			"csi.storage.k8s.io/serviceAccount.tokens": `{"":{"token":"eyJhbGciOi"}}`,
		},
	}
	fmt.Println(csispec.Redact(req))

	// In a log nothing is computed unless the line is written.
	log := slog.New(slog.NewTextHandler(os.Stdout, nil))
	log.Debug("staging", "request", csispec.Redact(req))
	// Output:
	// {"volume_id":"vol-1","secrets":"***stripped***","volume_context":{"csi.storage.k8s.io/serviceAccount.tokens":"***stripped***","share":"backup"}}
}

func ExampleRedacted_Strip() {
	req := &csi.NodeStageVolumeRequest{Secrets: map[string]string{"password": "hunter2"}}
	err := fmt.Errorf("mount.cifs: cannot log in as backup/hunter2")
	fmt.Println(csispec.Redact(req).Strip(err.Error()))
	// Output:
	// mount.cifs: cannot log in as backup/***stripped***
}

func ExampleCheckCapabilities() {
	err := csispec.CheckCapabilities(csispec.Capabilities{
		Plugin:     []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE},
		Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CLONE_VOLUME},
	})
	fmt.Println(err)
	// Output:
	// invalid capabilities: controller.CLONE_VOLUME needs controller.CREATE_DELETE_VOLUME: add that, or drop this
}
