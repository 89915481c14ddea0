package nodeops

import "testing"

func TestCheckStage(t *testing.T) {
	good := FilesystemStage{StagingTargetPath: "/staging", FSType: "btrfs", MountFlags: []string{"noatime,compress=zstd"}}
	if opts, err := checkStage(good); err != nil || len(opts.Data) != 1 {
		t.Errorf("%+v, %v", opts, err)
	}
	for name, change := range map[string]func(*FilesystemStage){
		"type":        func(r *FilesystemStage) { r.FSType = "vfat" },
		"path":        func(r *FilesystemStage) { r.StagingTargetPath = "staging" },
		"group":       func(r *FilesystemStage) { r.MountGroup = "staff" },
		"flag":        func(r *FilesystemStage) { r.MountFlags = []string{"bind"} },
		"a part":      func(r *FilesystemStage) { r.MountFlags = []string{"noatime", "ro,subvol=a"} },
		"another one": func(r *FilesystemStage) { r.MountFlags = []string{"device=/dev/x"} },
	} {
		r := good
		change(&r)
		if _, err := checkStage(r); err == nil {
			t.Errorf("%s: %+v is allowed", name, r)
		}
	}
}
