package filepool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"google.golang.org/protobuf/proto"
)

func benchBackend(b *testing.B, volumes int) *fileBackend {
	b.Helper()
	dir := b.TempDir()
	p, err := initPool(dir)
	if err != nil {
		b.Fatal(err)
	}
	// The files of a pool, without the time that making them durable takes.
	for i := range volumes {
		v := volume{ID: volumeID(fmt.Sprint(i)), Name: fmt.Sprint(i), CapacityBytes: gib, AccessType: "ext4", Generation: 1}
		data, err := encode(v.metadata())
		if err != nil {
			b.Fatal(err)
		}
		file := filepath.Join(dir, "volumes", v.ID)
		if err := os.WriteFile(file+extMetadata, data, 0o600); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(file+extImage, nil, 0o600); err != nil {
			b.Fatal(err)
		}
		if err := os.Truncate(file+extImage, gib); err != nil {
			b.Fatal(err)
		}
	}
	p.space = func() (int64, int64, error) { return 1 << 50, 1 << 50, nil }
	f, err := newFileBackend(p, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close(); p.Close() })
	return f
}

// BenchmarkCreateDelete compares a volume's life with the same file operations done
// bare. times-bare must not grow with the number of volumes.
func BenchmarkCreateDelete(b *testing.B) {
	for _, volumes := range []int{10, 1_000, 10_000} {
		b.Run(fmt.Sprint(volumes), func(b *testing.B) {
			f := benchBackend(b, volumes)
			bare := b.TempDir()
			var with, without func() float64
			with = func() float64 {
				return seconds(func() {
					v, err := f.CreateVolume(b.Context(), spec("bench"))
					if err != nil {
						b.Fatal(err)
					}
					if err := f.DeleteVolume(b.Context(), v.ID); err != nil {
						b.Fatal(err)
					}
				})
			}
			without = func() float64 { return seconds(func() { bareLife(b, bare) }) }
			var driver, bareSeconds float64
			for b.Loop() {
				driver += with()
				bareSeconds += without()
			}
			b.ReportMetric(driver/bareSeconds, "times-bare")
		})
	}
}

// BenchmarkCalls compares the calls that are no lists with 10 000 volumes and with 10:
// times-10 is their ratio, from rounds that take turns.
func BenchmarkCalls(b *testing.B) {
	var few, many *fileBackend
	for _, x := range []struct {
		to      **fileBackend
		volumes int
	}{{&few, 10}, {&many, 10_000}} {
		*x.to = benchBackend(b, x.volumes)
		if err := (*x.to).RegisterNode("n", 0, nil); err != nil {
			b.Fatal(err)
		}
	}
	ctx, id := b.Context(), volumeID("1")
	n := int64(0) // of rounds
	for name, call := range map[string]func(*fileBackend) error{
		"attach-detach": func(f *fileBackend) error {
			_, err := f.AttachVolume(ctx, id, storage.Attachment{NodeID: "n", AccessMode: "SINGLE_NODE_WRITER"})
			return errors.Join(err, f.DetachVolume(ctx, id, "n"))
		},
		"expand": func(f *fileBackend) error {
			_, err := f.ExpandVolume(ctx, id, storage.CapacityRange{Required: gib + n<<20})
			return err
		},
		"snapshot-delete": func(f *fileBackend) error {
			s, err := f.CreateSnapshot(ctx, snap("s", id))
			return errors.Join(err, f.DeleteSnapshot(ctx, s.ID))
		},
		"modify": func(f *fileBackend) error {
			return f.ModifyVolume(ctx, id, map[string]string{paramReadAhead: fmt.Sprint(n & 1)})
		},
		"get":      func(f *fileBackend) error { _, err := f.GetVolume(ctx, id); return err },
		"health":   func(f *fileBackend) error { _, err := f.CheckVolume(ctx, id); return err },
		"capacity": func(f *fileBackend) error { _, err := f.Places(ctx); return err },
	} {
		b.Run(name, func(b *testing.B) {
			var with [2]float64
			for b.Loop() {
				n++
				for i, f := range []*fileBackend{few, many} {
					with[i] += seconds(func() {
						if err := call(f); err != nil {
							b.Fatal(err)
						}
					})
				}
			}
			b.ReportMetric(with[1]/with[0], "times-10")
		})
	}
}

// bareLife is what a volume's life is at least: a sparse image and its metadata, made
// durable before the create is acknowledged, and gone for good after the delete.
func bareLife(b *testing.B, dir string) {
	image, metadata := filepath.Join(dir, "x.img"), filepath.Join(dir, "x.json")
	check := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	sync := func(name string) {
		f, err := os.Open(name)
		check(err)
		check(f.Sync())
		check(f.Close())
	}
	file := func(name string, do func(*os.File) error) {
		f, err := os.Create(name)
		check(err)
		check(do(f))
		check(f.Sync())
		check(f.Close())
	}
	file(image, func(f *os.File) error { return f.Truncate(gib) })
	sync(dir)
	file(metadata+".tmp", func(f *os.File) error { _, err := f.Write(make([]byte, 200)); return err })
	check(os.Rename(metadata+".tmp", metadata))
	sync(dir)
	check(os.Rename(metadata, metadata+".deleting"))
	sync(dir)
	check(os.Remove(image))
	sync(dir)
	check(os.Remove(metadata + ".deleting"))
}

// BenchmarkListVolumes compares the list of 10 000 volumes with encoding it for the CO.
func BenchmarkListVolumes(b *testing.B) {
	f := benchBackend(b, 10_000)
	m := &filePools{poolSet: &poolSet[*fileBackend]{
		configs: []poolConfig{{Name: "default"}}, opened: map[string]*fileBackend{"default": f},
	}}
	var list, encoding float64
	for b.Loop() {
		listed := 0
		for token, more := "", true; more; more = token != "" {
			var page []storage.Volume
			list += seconds(func() {
				var err error
				if page, token, err = (backend{m}).ListVolumes(b.Context(), token, 4000); err != nil {
					b.Fatal(err)
				}
			})
			resp := &csi.ListVolumesResponse{NextToken: token}
			for _, v := range page {
				resp.Entries = append(resp.Entries, &csi.ListVolumesResponse_Entry{
					Volume: &csi.Volume{VolumeId: v.ID, CapacityBytes: v.CapacityBytes}, Status: &csi.ListVolumesResponse_VolumeStatus{},
				})
			}
			encoding += seconds(func() {
				if _, err := proto.Marshal(resp); err != nil {
					b.Fatal(err)
				}
			})
			listed += len(page)
		}
		if listed != 10_000 {
			b.Fatal(listed)
		}
	}
	b.ReportMetric((list+encoding)/encoding, "times-encoding")
}

// BenchmarkRestart compares opening a pool of 10 000 volumes with reading their files.
func BenchmarkRestart(b *testing.B) {
	f := benchBackend(b, 10_000)
	f.Close()
	var open, reading float64
	for b.Loop() {
		open += seconds(func() {
			g, err := newFileBackend(f.pool, nil)
			if err != nil || len(g.vols.index) != 10_000 {
				b.Fatal(err)
			}
			g.Close()
		})
		reading += seconds(func() {
			names, err := os.ReadDir(filepath.Join(f.dir, "volumes"))
			if err != nil {
				b.Fatal(err)
			}
			for _, n := range names {
				path := filepath.Join(f.dir, "volumes", n.Name())
				if filepath.Ext(path) == extMetadata {
					_, err = os.ReadFile(path)
				} else {
					_, err = os.Lstat(path)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.ReportMetric(open/reading, "times-reading")
}

func seconds(do func()) float64 {
	start := time.Now()
	do()
	return time.Since(start).Seconds()
}
