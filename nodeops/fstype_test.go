package nodeops

import (
	"errors"
	"slices"
	"testing"

	"github.com/csikit/csikit/csierr"
)

func TestFindVersion(t *testing.T) {
	for text, want := range map[string]version{
		"mke2fs 1.47.0 (5-Feb-2023)\n\tUsing EXT2FS Library version 1.47.0": {1, 47, 0},
		"mke2fs 1.46-WIP (20-Mar-2020)":                                     {1, 46, 0},
		"mkfs.xfs version 6.1.0":                                            {6, 1, 0},
		"mkfs.btrfs, part of btrfs-progs v6.2":                              {6, 2, 0},
		"mkfs.xfs version 7":                                                {},
		"":                                                                  {},
	} {
		if v, ok := findVersion(text); v != want || ok == (want == version{}) {
			t.Errorf("%q: %v, %v; want %v", text, v, ok, want)
		}
	}
}

func TestParseKernel(t *testing.T) {
	for text, want := range map[string]version{"5.4": {5, 4}, "5.15.0": {5, 15}, "6.10": {6, 10}, "3.16": {3, 16}} {
		if v, err := parseKernel(text); v != want || err != nil {
			t.Errorf("%q: %v, %v; want %v", text, v, err, want)
		}
	}
	for _, text := range []string{"5", "v5.4", "5.4-generic", "5.4.0-150-generic", "5.4.0.1", " 5.4", "5.4\n", "5,4", "-5.4", "99999.1", "latest", "3.15", "2.6.32", "0.0"} {
		_, err := checkStage(StageFilesystemRequest{StagingTargetPath: "/s", FSType: "ext4", OldestKernel: text})
		if f := (*fault)(nil); !errors.As(err, &f) || f.kind != csierr.Invalid {
			t.Errorf("%q: %v, want that it is invalid", text, err)
		}
	}
	if _, err := checkStage(StageFilesystemRequest{StagingTargetPath: "/s", FSType: "ext4"}); err != nil {
		t.Error(err)
	}
}

// A mkfs disables the features that it knows and the kernel does not support.
func TestDisableArgs(t *testing.T) {
	tests := []struct {
		fsType       string
		kernel, mkfs version
		want         []string
	}{
		{"ext4", version{6, 1}, version{1, 47}, nil},
		{"ext4", version{5, 15}, version{1, 47}, nil},
		{"ext4", version{5, 14, 21}, version{1, 47}, []string{"-O", "^orphan_file"}},
		{"ext4", version{5, 4}, version{1, 46, 6}, nil},
		{"ext4", version{4, 3}, version{1, 47, 2}, []string{"-O", "^metadata_csum_seed", "-O", "^orphan_file"}},
		{"ext4", version{4, 3}, version{1, 42, 13}, nil},
		{"xfs", version{6, 18}, version{6, 18}, nil},
		{"xfs", version{6, 1}, version{6, 13}, []string{"-i", "exchange=0", "-n", "parent=0", "-m", "metadir=0"}},
		{"xfs", version{5, 4}, version{6, 1}, []string{"-m", "inobtcount=0", "-m", "bigtime=0", "-i", "nrext64=0"}},
		{"xfs", version{5, 4}, version{5, 9}, nil},
	}
	for _, test := range tests {
		if got := filesystems[test.fsType].disableArgs(test.kernel, test.mkfs); !slices.Equal(got, test.want) {
			t.Errorf("%s for Linux %v by mkfs %v: %q, want %q", test.fsType, test.kernel, test.mkfs, got, test.want)
		}
	}
}
