package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
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
		v := Volume{ID: volumeID(fmt.Sprint(i)), Name: fmt.Sprint(i), CapacityBytes: gib, AccessType: "ext4", Generation: 1}
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

// BenchmarkListVolumes compares the list of 10 000 volumes with encoding it.
func BenchmarkListVolumes(b *testing.B) {
	c := newController(onePool{benchBackend(b, 10_000)}, false)
	var list, encoding float64
	for b.Loop() {
		var resp *csi.ListVolumesResponse
		list += seconds(func() {
			var err error
			if resp, err = c.ListVolumes(b.Context(), &csi.ListVolumesRequest{}); err != nil || len(resp.GetEntries()) != 10_000 {
				b.Fatal(err)
			}
		})
		encoding += seconds(func() {
			if _, err := proto.Marshal(resp); err != nil {
				b.Fatal(err)
			}
		})
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
