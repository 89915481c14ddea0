package mountapi

import (
	"fmt"
	"slices"
	"testing"
)

func TestStackAt(t *testing.T) {
	table := []Mount{
		{ID: 20, ParentID: 1, MountPoint: "/"},
		{ID: 21, ParentID: 20, MountPoint: "/"},
		{ID: 22, ParentID: 21, MountPoint: "/a"},
		{ID: 23, ParentID: 22, MountPoint: "/a/b"},
		{ID: 24, ParentID: 23, MountPoint: "/a/b"},
		{ID: 25, ParentID: 24, MountPoint: "/a/b/c/d"},
		{ID: 26, ParentID: 21, MountPoint: "/ab"},
		// A directory that is bound to itself: what is below is there twice.
		{ID: 30, ParentID: 21, MountPoint: "/kubelet"},
		{ID: 31, ParentID: 30, MountPoint: "/kubelet/pod"},
		{ID: 32, ParentID: 21, MountPoint: "/kubelet/pod"},
		// Mounted over later.
		{ID: 40, ParentID: 21, MountPoint: "/x/y"},
		{ID: 41, ParentID: 21, MountPoint: "/x"},
		{ID: 42, ParentID: 41, MountPoint: "/x/z"},
		// Mounts that name each other.
		{ID: 50, ParentID: 51, MountPoint: "/loop"},
		{ID: 51, ParentID: 50, MountPoint: "/loop"},
	}
	for _, test := range []struct {
		path string
		want []int
	}{
		{"/", []int{20, 21}},
		{"/a", []int{22}},
		{"/a/b", []int{23, 24}},
		{"/a/b/c", nil},
		{"/a/b/c/d", []int{25}},
		{"/a/b/c/d/e", nil},
		{"/ab", []int{26}},
		{"/abc", nil},
		{"/kubelet/pod", []int{31}},
		{"/x", []int{41}},
		{"/x/y", nil},
		{"/x/z", []int{42}},
		{"/loop", nil},
		{"relative", nil},
	} {
		var ids []int
		for _, m := range Stack(table, test.path) {
			ids = append(ids, m.ID)
		}
		if !slices.Equal(ids, test.want) {
			t.Errorf("%s: %v, want %v", test.path, ids, test.want)
		}
	}
	if on := Stack(nil, "/"); on != nil {
		t.Errorf("no mounts: %v", on)
	}
	chroot := []Mount{{ID: 2, ParentID: 1, MountPoint: "/a"}, {ID: 3, ParentID: 1, MountPoint: "/b"}}
	if on := Stack(chroot, "/b"); len(on) != 1 {
		t.Errorf("the root is no mount point: %v", on)
	}
	selfParent := []Mount{{ID: 1, ParentID: 1, MountPoint: "/"}, {ID: 2, ParentID: 1, MountPoint: "/a"}}
	if on := Stack(selfParent, "/"); len(on) != 1 {
		t.Errorf("a mount that is its own parent: %v", on)
	}
	round := []Mount{{ID: 1, MountPoint: "/"}, {ID: 2, ParentID: 1, MountPoint: "/"}, {ID: 1, ParentID: 2, MountPoint: "/"}}
	if on := Stack(round, "/"); len(on) > len(round) {
		t.Errorf("ids that go round: %v", on)
	}
}

// kubelets returns the table of a node with n pods that use one volume each.
func kubelets(n int) []Mount {
	table := []Mount{
		{ID: 20, ParentID: 1, MountPoint: "/"},
		{ID: 21, ParentID: 20, MountPoint: "/var/lib/kubelet"},
	}
	for i := range n {
		table = append(table, Mount{ID: 100 + i, ParentID: 21, MountPoint: fmt.Sprintf("/var/lib/kubelet/pods/%d/volumes/kubernetes.io~csi/pvc/mount", i)})
	}
	return table
}

// The table of a busy node is long, and each operation looks up some paths in it.
func TestStackAllocatesOnlyItsResult(t *testing.T) {
	table := kubelets(1000)
	for path, want := range map[string]float64{
		table[500].MountPoint:                       1,
		"/var/lib/kubelet/plugins/not/mounted/here": 0,
	} {
		if n := testing.AllocsPerRun(10, func() { Stack(table, path) }); n != want {
			t.Errorf("%s: %v allocations, want %v", path, n, want)
		}
	}
}

func BenchmarkStack(b *testing.B) {
	table := kubelets(10000)
	path := table[5000].MountPoint
	b.ReportAllocs()
	for b.Loop() {
		Stack(table, path)
	}
}
