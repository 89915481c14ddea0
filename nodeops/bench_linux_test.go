package nodeops

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
	"k8s.io/utils/exec"
)

// The ratios to k8s.io/mount-utils, in one run: go test -run xxx -bench . ./nodeops

func BenchmarkPublish(b *testing.B) {
	for _, mounts := range []int{10, 1000, 10000} {
		for _, readOnly := range []bool{false, true} {
			access := "rw"
			if readOnly {
				access = "ro"
			}
			b.Run(fmt.Sprintf("%s/mounts=%d", access, mounts), func(b *testing.B) {
				n, staging, pods := crowded(b, mounts)
				target := filepath.Join(pods, "p")
				ctx := context.Background()
				r := FilesystemPublish{VolumeID: "v", StagingTargetPath: staging, TargetPath: target, ReadOnly: readOnly}
				for b.Loop() {
					ok(b, n.PublishFilesystem(ctx, r))
					ok(b, n.Unpublish(ctx, "v", target))
				}
			})
		}
	}
	b.Run("mount-utils/ro/mounts=10", func(b *testing.B) {
		_, staging, pods := crowded(b, 10)
		target := filepath.Join(pods, "p")
		m := mount.NewWithoutSystemd("")
		for b.Loop() {
			ok(b, os.Mkdir(target, 0o750))
			ok(b, m.Mount(staging, target, "", []string{"bind", "ro"}))
			ok(b, mount.CleanupMountPoint(target, m, true))
		}
	})
}

// crowded is a staged volume among so many mounts.
func crowded(b *testing.B, mounts int) (n *Node, staging, pods string) {
	n, staging, pods = staged(b)
	others := filepath.Join(filepath.Dir(pods), "others")
	ok(b, os.Mkdir(others, 0o755))
	for i := range mounts {
		p := filepath.Join(others, fmt.Sprint(i))
		ok(b, os.Mkdir(p, 0o755))
		ok(b, unix.Mount(staging, p, "", unix.MS_BIND, ""))
	}
	return n, staging, pods
}

func BenchmarkStageFormatted(b *testing.B) {
	for _, c := range fsTable {
		b.Run(c.fsType, func(b *testing.B) {
			f := newFixture(b, c.size)
			f.mustStage(c.fsType)
			ok(b, unix.Unmount(f.staging, 0))
			for b.Loop() {
				f.mustStage(c.fsType)
				b.StopTimer()
				ok(b, unix.Unmount(f.staging, 0))
				b.StartTimer()
			}
		})
		b.Run("mount-utils/"+c.fsType, func(b *testing.B) {
			f := newFixture(b, c.size)
			f.mustStage(c.fsType)
			ok(b, unix.Unmount(f.staging, 0))
			m := mount.NewSafeFormatAndMount(mount.NewWithoutSystemd(""), exec.New())
			for b.Loop() {
				ok(b, m.FormatAndMount(f.dev.Path, f.staging, c.fsType, nil))
				b.StopTimer()
				ok(b, unix.Unmount(f.staging, 0))
				b.StartTimer()
			}
		})
	}
}

func BenchmarkStageFresh(b *testing.B) {
	blank := func(b *testing.B, f *fixture) {
		b.StopTimer()
		unix.Unmount(f.staging, 0)
		file, err := os.OpenFile(f.image, os.O_RDWR, 0)
		ok(b, err)
		ok(b, unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<30))
		ok(b, file.Close())
		dev, err := os.Open(f.dev.Path)
		ok(b, err)
		ok(b, unix.IoctlSetInt(int(dev.Fd()), unix.BLKFLSBUF, 0))
		ok(b, dev.Close())
		b.StartTimer()
	}
	for _, prezeroed := range []bool{false, true} {
		b.Run(fmt.Sprintf("ext4/prezeroed=%v", prezeroed), func(b *testing.B) {
			f := newFixture(b, 1<<30)
			r := f.stageRequest("ext4")
			r.Prezeroed = prezeroed
			for b.Loop() {
				ok(b, f.stage(r))
				blank(b, f)
			}
		})
	}
	b.Run("btrfs", func(b *testing.B) {
		f := newFixture(b, 1<<30)
		for b.Loop() {
			f.mustStage("btrfs")
			blank(b, f)
		}
	})
	for _, fsType := range []string{"ext4", "btrfs"} {
		b.Run("mount-utils/"+fsType, func(b *testing.B) {
			f := newFixture(b, 1<<30)
			m := mount.NewSafeFormatAndMount(mount.NewWithoutSystemd(""), exec.New())
			for b.Loop() {
				ok(b, m.FormatAndMount(f.dev.Path, f.staging, fsType, nil))
				blank(b, f)
			}
		})
	}
}
