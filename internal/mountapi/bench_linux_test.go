package mountapi

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// Each with 10, 1 000 and 10 000 other mounts.
func BenchmarkMounts(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newSandbox(b)
			volume, target := s.tmpfs("volume", 0), s.mkdir("target")
			for i := range n {
				pod := s.mkdir(fmt.Sprintf("pods/%d", i))
				s.ok(unix.Mount(volume, pod, "", unix.MS_BIND, ""))
			}
			old := Kernel{Without: TreeCalls | ContextCalls | StatCalls}
			for _, k := range []struct {
				name   string
				kernel Kernel
			}{{"", Kernel{}}, {" without newer calls", old}} {
				b.Run("bind read-only and unmount"+k.name, func(b *testing.B) {
					for b.Loop() {
						s.ok(bind(k.kernel, volume, target, ReadOnly))
						if was, err := Unmount(target); !was {
							b.Fatal(err)
						}
					}
				})
				b.Run("At"+k.name, func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						if on, err := k.kernel.At(s.path("pods/3")); len(on) != 1 {
							b.Fatal(on, err)
						}
					}
				})
			}
			b.Run("unmount of nothing", func(b *testing.B) {
				for b.Loop() {
					if was, err := Unmount(target); was || err != nil {
						b.Fatal(was, err)
					}
				}
			})
			b.Run("Table", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					s.table()
				}
			})
		})
	}
}
