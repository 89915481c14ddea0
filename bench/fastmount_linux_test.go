package bench

import (
	"fmt"
	"os"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/nodeops/fastmount"
	mount "k8s.io/mount-utils"
)

// benchWorld has a source on a file system of its own, like a staged volume, and
// n mounts beside it.
func benchWorld(b *testing.B, n int) (source, target string) {
	gate.UserNS(b)
	gate.Tools(b, "mount", "umount")
	dir, m := b.TempDir(), fastmount.New()
	b.Cleanup(func() { unmountBelow(b, dir) })
	source, target = dir+"/src", dir+"/dst"
	ok(b, os.Mkdir(source, 0o755))
	ok(b, os.Mkdir(target, 0o755))
	ok(b, m.Mount("tmpfs", source, "tmpfs", nil))
	for i := range n {
		beside := fmt.Sprint(dir, "/", i)
		ok(b, os.Mkdir(beside, 0o755))
		ok(b, m.Mount(source, beside, "", []string{"bind"}))
	}
	return source, target
}

// compare measures op with both mounters; after each run comes undo.
func compare(b *testing.B, op, undo func(mount.Interface) error) {
	theirs, ours := mount.NewWithoutSystemd(""), fastmount.New()
	as := func(name string, m mount.Interface, times int) way {
		w := way{name: name, times: times, do: func() error { return op(m) }}
		if undo != nil {
			w.undo = func() error { return undo(ours) }
		}
		return w
	}
	ratio(b, as("mount-utils", theirs, 1), as("fastmount", ours, 10))
}

func BenchmarkReadOnlyBind(b *testing.B) {
	for _, n := range []int{0, 1000} {
		b.Run(fmt.Sprint("mounts=", n), func(b *testing.B) {
			source, target := benchWorld(b, n)
			compare(b, func(m mount.Interface) error {
				return m.Mount(source, target, "", []string{"bind", "ro"})
			}, func(m mount.Interface) error { return m.Unmount(target) })
		})
	}
}

func BenchmarkUnmount(b *testing.B) {
	for _, n := range []int{0, 1000} {
		b.Run(fmt.Sprint("mounts=", n), func(b *testing.B) {
			source, target := benchWorld(b, n)
			bind := func(m mount.Interface) error { return m.Mount(source, target, "", []string{"bind", "ro"}) }
			ok(b, bind(fastmount.New()))
			compare(b, func(m mount.Interface) error { return m.Unmount(target) }, bind)
			ok(b, fastmount.New().Unmount(target))
		})
	}
}

func BenchmarkIsMountPoint(b *testing.B) {
	source, target := benchWorld(b, 0)
	for name, path := range map[string]string{"yes": source, "no": target} {
		b.Run(name, func(b *testing.B) {
			compare(b, func(m mount.Interface) error {
				is, err := m.IsMountPoint(path)
				if is != (name == "yes") {
					b.Error(is)
				}
				return err
			}, nil)
		})
	}
}

func BenchmarkGetMountRefs(b *testing.B) {
	source, _ := benchWorld(b, 1000)
	compare(b, func(m mount.Interface) error {
		refs, err := m.GetMountRefs(source)
		if len(refs) != 1000 {
			b.Error(len(refs))
		}
		return err
	}, nil)
}

func BenchmarkList(b *testing.B) {
	benchWorld(b, 1000)
	compare(b, func(m mount.Interface) error {
		_, err := m.List()
		return err
	}, nil)
}
