package nodeops

import "testing"

func TestCheckStage(t *testing.T) {
	good := StageFilesystemRequest{StagingTargetPath: "/staging", FSType: "btrfs", MountFlags: []string{"noatime,compress=zstd"}}
	if opts, err := checkStage(good); err != nil || len(opts.Data) != 1 {
		t.Errorf("%+v, %v", opts, err)
	}
	for name, change := range map[string]func(*StageFilesystemRequest){
		"type":        func(r *StageFilesystemRequest) { r.FSType = "vfat" },
		"path":        func(r *StageFilesystemRequest) { r.StagingTargetPath = "staging" },
		"flag":        func(r *StageFilesystemRequest) { r.MountFlags = []string{"bind"} },
		"a part":      func(r *StageFilesystemRequest) { r.MountFlags = []string{"noatime", "ro,subvol=a"} },
		"another one": func(r *StageFilesystemRequest) { r.MountFlags = []string{"device=/dev/x"} },
	} {
		r := good
		change(&r)
		if _, err := checkStage(r); err == nil {
			t.Errorf("%s: %+v is allowed", name, r)
		}
	}
}
