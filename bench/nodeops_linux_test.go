package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/csikit/csikit/nodeops"
	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
	"k8s.io/utils/exec"
)

// quiet discards what mount-utils logs.
func quiet(b *testing.B) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	ok(b, err)
	was := os.Stderr
	os.Stderr = null
	b.Cleanup(func() { os.Stderr = was; null.Close() })
}

func BenchmarkPublishReadOnly(b *testing.B) {
	p := newPublications(b)
	ratio(b,
		way{name: "mount-utils", do: p.publishTheirs, undo: p.unpublishTheirs},
		way{name: "nodeops", do: p.publish, undo: p.unpublish, times: 10})
}

func BenchmarkUnpublish(b *testing.B) {
	p := newPublications(b)
	ok(b, p.publish())
	ratio(b,
		way{name: "mount-utils", do: p.unpublishTheirs, undo: p.publish},
		way{name: "nodeops", do: p.unpublish, undo: p.publish, times: 10})
	ok(b, p.unpublish())
}

// Publish and unpublish with 10 and with 10 000 other mounts.
func BenchmarkManyMounts(b *testing.B) {
	p := newPublications(b)
	others := filepath.Join(filepath.Dir(p.staging), "others")
	ok(b, os.Mkdir(others, 0o755))
	with := func(mounts int) []time.Duration {
		ok(b, unix.Mount("tmpfs", others, "tmpfs", 0, ""))
		for i := range mounts {
			path := fmt.Sprint(others, "/", i)
			ok(b, os.Mkdir(path, 0o755))
			ok(b, unix.Mount(p.staging, path, "", unix.MS_BIND, ""))
		}
		var spent []time.Duration
		for range 200 {
			start := time.Now()
			ok(b, p.publish())
			ok(b, p.unpublish())
			spent = append(spent, time.Since(start))
		}
		ok(b, unix.Unmount(others, unix.MNT_DETACH)) // and all that is mounted in it
		return spent
	}
	var few, many []time.Duration
	for b.Loop() {
		few = append(few, with(10)...)
		many = append(many, with(10000)...)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(micros(few), "µs/10-mounts")
	b.ReportMetric(micros(many), "µs/10000-mounts")
	b.ReportMetric(micros(many)/micros(few), "times-slower")
}

// publications publish a staged volume, and take it back.
type publications struct {
	node    *nodeops.Node
	utils   mount.Interface
	staging string
	target  string
	b       *testing.B
}

func newPublications(b *testing.B) publications {
	n, staging, pods := staged(b)
	return publications{n, mount.NewWithoutSystemd(""), staging, filepath.Join(pods, "p"), b}
}

func (p publications) publish() error {
	return p.node.PublishFilesystem(p.b.Context(), nodeops.PublishFilesystemRequest{VolumeID: "v", StagingTargetPath: p.staging, TargetPath: p.target, ReadOnly: true})
}

func (p publications) unpublish() error {
	return p.node.Unpublish(p.b.Context(), nodeops.UnpublishRequest{VolumeID: "v", TargetPath: p.target})
}

func (p publications) publishTheirs() error {
	if err := os.Mkdir(p.target, 0o750); err != nil {
		return err
	}
	return p.utils.Mount(p.staging, p.target, "", []string{"bind", "ro"})
}

func (p publications) unpublishTheirs() error {
	return mount.CleanupMountPoint(p.target, p.utils, true)
}

func BenchmarkStageFormatted(b *testing.B) {
	for _, c := range []struct {
		fsType string
		size   int64
	}{{"ext4", 64 * mib}, {"xfs", 320 * mib}, {"btrfs", 128 * mib}} {
		b.Run(c.fsType, func(b *testing.B) {
			f := newFixture(b, c.size)
			quiet(b)
			ok(b, f.stage(f.stageRequest(c.fsType)))
			unmount := func() error { return unix.Unmount(f.staging, 0) }
			ok(b, unmount())
			ratio(b,
				way{name: "mount-utils", do: f.formatAndMount(c.fsType), undo: unmount},
				way{name: "nodeops", do: func() error { return f.stage(f.stageRequest(c.fsType)) }, undo: unmount})
		})
	}
}

func BenchmarkStageFresh(b *testing.B) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		for _, prezeroed := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/prezeroed=%v", fsType, prezeroed), func(b *testing.B) {
				f := newFixture(b, gib)
				quiet(b)
				r := f.stageRequest(fsType)
				r.Prezeroed = prezeroed
				blank := func() error {
					if err := unix.Unmount(f.staging, 0); err != nil {
						return err
					}
					f.erase()
					return nil
				}
				ratio(b,
					way{name: "mount-utils", do: f.formatAndMount(fsType), undo: blank},
					way{name: "nodeops", do: func() error { return f.stage(r) }, undo: blank})
			})
		}
	}
}

// formatAndMount is what a driver does that stages with mount-utils.
func (f *fixture) formatAndMount(fsType string) func() error {
	m := mount.NewSafeFormatAndMount(mount.NewWithoutSystemd(""), exec.New())
	return func() error { return m.FormatAndMount(f.dev.Path, f.staging, fsType, nil) }
}
