package nodeops

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csitest/nfsd"
	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// versions of NFS that differ in what a client waits for. Without nolock, version 3 needs
// rpc.statd on the node.
var versions = []string{"vers=3,nolock", "vers=4.2"}

// nfs is a directory with targets of shares of a real server.
type nfs struct {
	*nfsd.Server
	t      *testing.T
	node   *Node
	pods   string
	source string
	flags  string
}

func newNFS(t *testing.T, flags string, cfg Config) *nfs {
	t.Helper()
	s := nfsd.Start(t)
	n, err := New(cfg)
	ok(t, err)
	f := &nfs{Server: s, t: t, node: n, pods: t.TempDir(), source: s.Export("share", "rw,no_root_squash"), flags: flags}
	t.Cleanup(func() {
		s.Reconnect()
		table, err := mountapi.Table()
		ok(t, err)
		for _, m := range table {
			if strings.HasPrefix(m.MountPoint, f.pods+"/") {
				// Of what hangs after a test that failed no other test is to hang.
				if err := unix.Unmount(m.MountPoint, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			}
		}
	})
	return f
}

func (f *nfs) target(pod string) string { return filepath.Join(f.pods, pod) }

func (f *nfs) request(pod string) PublishShareRequest {
	return PublishShareRequest{VolumeID: "v", Source: f.source, FSType: "nfs", TargetPath: f.target(pod), MountFlags: []string{f.flags}}
}

func (f *nfs) publish(pod string) error { return f.node.PublishShare(f.t.Context(), f.request(pod)) }

func (f *nfs) unpublish(pod string) error {
	return f.node.Unpublish(f.t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: f.target(pod)})
}

// soon returns a context for a call that should time out.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// wantNoHelper: a helper that is left would mount on a path of another volume when the
// server comes back.
func wantNoHelper(t *testing.T) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	ok(t, err)
	for _, name := range names {
		if text, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(text), "mount.nfs") {
			stat, _ := os.ReadFile(filepath.Dir(name) + "/stat")
			if !bytes.Contains(stat, []byte(") Z ")) {
				t.Errorf("a mount helper is left: %s", stat)
			}
		}
	}
}

func wantGone(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there (%v)", path, err)
	}
}

func onEachVersion(t *testing.T, cfg Config, test func(t *testing.T, f *nfs)) {
	for _, flags := range versions {
		t.Run(flags, func(t *testing.T) { test(t, newNFS(t, flags, cfg)) })
	}
}

func TestNFS(t *testing.T) {
	onEachVersion(t, Config{}, func(t *testing.T, f *nfs) {
		for range 2 {
			ok(t, f.publish("p"))
		}
		f.write(f.target("p")+"/file", "data")
		if got, err := os.ReadFile(f.Dir("share") + "/file"); err != nil || string(got) != "data" {
			t.Errorf("the server has %q (%v)", got, err)
		}
		r := f.request("ro")
		r.ReadOnly = true
		for range 2 {
			ok(t, f.node.PublishShare(t.Context(), r))
		}
		if err := os.WriteFile(f.target("ro")+"/file", nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing to a share that is published read-only: %v", err)
		}
		s, err := f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.target("p")})
		if err != nil || s.TotalBytes < 100*mib || s.AvailableBytes < 100*mib || s.TotalInodes == 0 {
			t.Errorf("stats are %+v (%v)", s, err)
		}

		r.ReadOnly = false
		wantKind(t, f.node.PublishShare(t.Context(), r), csierr.Conflict, "access is read-only")
		for flag, want := range map[string]string{"vers=4.1": "vers", "proto=udp": "proto"} {
			r := f.request("p")
			r.MountFlags = []string{flag}
			wantKind(t, f.node.PublishShare(t.Context(), r), csierr.Conflict, want)
		}
		r = f.request("p")
		r.Source = f.Export("other", "rw")
		wantKind(t, f.node.PublishShare(t.Context(), r), csierr.Conflict, "source is "+f.source)

		for _, pod := range []string{"p", "ro"} {
			for range 2 {
				ok(t, f.unpublish(pod))
			}
			wantGone(t, f.target(pod))
		}
	})
}

func (f *nfs) write(path, text string) {
	f.t.Helper()
	ok(f.t, os.WriteFile(path, []byte(text), 0o600))
}

// If a server refuses a mount, the code is final, and nothing is left of it. Version 3 does
// not report that an export does not exist to a client without access.
func TestNFSRefused(t *testing.T) {
	onEachVersion(t, Config{HelperTimeout: time.Minute}, func(t *testing.T, f *nfs) {
		export := csierr.NotFound
		if strings.HasPrefix(f.flags, "vers=3") {
			export = csierr.Internal
		}
		for source, kind := range map[string]csierr.Kind{
			f.source + "/missing":                             csierr.NotFound,
			strings.TrimSuffix(f.source, "share") + "missing": export,
		} {
			r := f.request("p")
			r.Source = source
			wantKind(t, f.node.PublishShare(t.Context(), r), kind, "mount.nfs", "exited with status 32")
			wantGone(t, r.TargetPath)
			wantNoHelper(t)
		}
	})
}

// kubernetes-csi/csi-driver-nfs#1271 and similar: if a server does not respond, its own
// volumes get DEADLINE_EXCEEDED, and others are not affected.
func TestNFSServerThatDoesNotAnswer(t *testing.T) {
	onEachVersion(t, Config{}, func(t *testing.T, f *nfs) {
		ok(t, f.publish("p"))
		hasty, err := New(Config{HelperTimeout: 2 * time.Second})
		ok(t, err)
		faults := map[string]func(){"packets are lost": f.Drop, "interface is down": f.Unplug, "nfsd is stopped": f.Stop}
		for name, begin := range faults {
			begin()
			// The caller times out before the helper does.
			err := f.node.PublishShare(soon(t), f.request("q"))
			if status.Code(err) != codes.DeadlineExceeded || !isPending(err) {
				t.Errorf("%s: publish: %v, want DEADLINE_EXCEEDED and pending", name, err)
			}
			// And a caller that waits gets its error.
			if err := hasty.PublishShare(t.Context(), f.request("r")); status.Code(err) != codes.DeadlineExceeded || isPending(err) {
				t.Errorf("%s: publish: %v, want DEADLINE_EXCEEDED of a helper that was killed", name, err)
			}
			wantGone(t, f.target("r"))

			stats, err := f.node.Stats(soon(t), StatsRequest{VolumeID: "v", VolumePath: f.target("p")})
			if before := stats.Age > 0; !before && (status.Code(err) != codes.DeadlineExceeded || !isPending(err)) {
				t.Errorf("%s: stats: %+v, %v, want older ones, or DEADLINE_EXCEEDED and pending", name, stats, err)
			}
			err = f.node.PublishShare(soon(t), f.request("p")) // is it the same, and does it live?
			if status.Code(err) != codes.DeadlineExceeded || !isPending(err) {
				t.Errorf("%s: publish again: %v, want DEADLINE_EXCEEDED and pending", name, err)
			}

			// Another volume of the same Node.
			other := f.target("other")
			helper(t, "tmpfs", mounts)
			ok(t, f.node.share(t, other, nil))
			_, err = f.node.Stats(t.Context(), StatsRequest{VolumeID: "other", VolumePath: other})
			ok(t, err)
			ok(t, f.node.Unpublish(t.Context(), UnpublishRequest{VolumeID: "other", TargetPath: other}))

			if name == "nfsd is stopped" {
				f.Start()
			} else {
				f.Reconnect()
			}
			waitIdle(t, f.node)
			wantNoHelper(t)
			for _, pod := range []string{"p", "q"} {
				ok(t, f.publish(pod))
			}
			ok(t, f.unpublish("q"))
			_, err = f.node.Stats(t.Context(), StatsRequest{VolumeID: "v", VolumePath: f.target("p")})
			ok(t, err)
		}
		ok(t, f.unpublish("p"))
	})
}

// The pod can be deleted while its server does not respond, if the policy allows it.
func TestNFSUnpublishWithoutServer(t *testing.T) {
	onEachVersion(t, Config{}, func(t *testing.T, f *nfs) {
		f.flags += ",actimeo=0" // each access to the mount sends a request
		for _, tt := range []struct {
			name   string
			policy UnmountPolicy
			use    func(t *testing.T)
		}{
			{"idle, waiting", UnmountWait, func(*testing.T) { f.Drop() }},
			{"idle, forced", UnmountForce, func(*testing.T) { f.Drop() }},
			{"looked at, forced", UnmountForce, func(t *testing.T) {
				f.Drop()
				if _, err := f.node.Stats(soon(t), StatsRequest{VolumeID: "v", VolumePath: f.target("p")}); !isPending(err) {
					t.Errorf("stats: %v, want pending", err)
				}
			}},
			// Forced does not free a version 3 mount whose writer waits (Linux 6.1): it stays busy.
			{"written to, lazy", UnmountLazy, f.writeAndDrop},
		} {
			t.Run(tt.name, func(t *testing.T) {
				defer f.Reconnect()
				ok(t, f.publish("p"))
				n, err := New(Config{Unmount: tt.policy, UnmountTimeout: 2 * time.Second})
				ok(t, err)
				tt.use(t)
				err = n.Unpublish(soon(t), UnpublishRequest{VolumeID: "v", TargetPath: f.target("p")})
				if err != nil && status.Code(err) != codes.Aborted && (status.Code(err) != codes.DeadlineExceeded || !isPending(err)) {
					t.Errorf("without time left: %v, want ABORTED, or DEADLINE_EXCEEDED and pending", err)
				}
				if tt.policy == UnmountWait {
					f.Reconnect()
				}
				ok(t, n.Unpublish(t.Context(), UnpublishRequest{VolumeID: "v", TargetPath: f.target("p")}))
				wantGone(t, f.target("p"))
				if tt.policy != UnmountWait {
					f.Reconnect()
				}
				waitIdle(t, n)
				waitIdle(t, f.node)
			})
		}
	})
}

// writeAndDrop is a pod that is killed while what it wrote waits for the server.
func (f *nfs) writeAndDrop(t *testing.T) {
	pod := exec.Command("sh", "-c", `exec 3>"$0/file"; echo opened; read _; echo data >&3; read _`, f.target("p"))
	in, err := pod.StdinPipe()
	ok(t, err)
	out, err := pod.StdoutPipe()
	ok(t, err)
	ok(t, pod.Start())
	said := bufio.NewReader(out)
	_, err = said.ReadString('\n')
	ok(t, err)
	f.Drop()
	_, err = in.Write([]byte("\n"))
	ok(t, err)
	stat := fmt.Sprintf("/proc/%d/stat", pod.Process.Pid)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if text, err := os.ReadFile(stat); err == nil && bytes.Contains(text, []byte(") D ")) {
			break // it waits for the server
		}
		if time.Now().After(deadline) {
			t.Fatal("the pod does not wait for the server")
		}
	}
	ok(t, pod.Process.Kill()) // which it does not heed before the server answers, or the mount is forced
	t.Cleanup(func() { _ = pod.Wait() })
}

// kubernetes-csi/csi-driver-nfs#927: a stale handle kept pods from starting again.
func TestNFSStaleHandle(t *testing.T) {
	onEachVersion(t, Config{}, func(t *testing.T, f *nfs) {
		ok(t, f.publish("p"))
		f.write(f.target("p")+"/file", "old")
		f.Replace()
		for range 2 {
			ok(t, f.publish("p"))
		}
		if _, err := os.Lstat(f.target("p") + "/file"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the old file system is still shown (%v)", err)
		}
		f.write(f.target("p")+"/file", "new")

		f.Withdraw("share")
		err := f.publish("p")
		t.Logf("%v", err)
		if err == nil {
			t.Error("a share that is no longer exported was treated as published")
		}
		f.Export("share", "rw,no_root_squash")
		ok(t, f.publish("p"))
		if got, err := os.ReadFile(f.target("p") + "/file"); err != nil || string(got) != "new" {
			t.Errorf("read %q (%v)", got, err)
		}
		f.Replace() // and gone while it is stale
		ok(t, f.unpublish("p"))
		wantGone(t, f.target("p"))
	})
}
