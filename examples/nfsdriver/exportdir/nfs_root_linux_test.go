package exportdir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/csitest/nfsd"
	"github.com/csikit/csikit/examples/nfsdriver/driver"
	"github.com/csikit/csikit/examples/nfsdriver/drivertest"
	"github.com/csikit/csikit/examples/nfsdriver/share"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// These tests need the kernel's NFS server; run them with make test-vm.

const writable = "rw,no_root_squash"

// startNFS serves the driver in this process.
func startNFS(t *testing.T, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	endpoint := "unix://" + filepath.Join(dir, "csi.sock")
	args = append([]string{"-endpoint", endpoint, "-node-id", "node", "-mount-dir", filepath.Join(dir, "mnt"),
		"-drain-timeout", "1s"}, args...)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- driver.Run(ctx, New(), args, func(string) string { return "" }, os.Stdout, testLog{T: t})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for _, m := range mountsBelow(t, dir) {
			t.Errorf("%s is still mounted", m)
			unix.Unmount(m, unix.MNT_FORCE|unix.MNT_DETACH)
		}
	})
	return endpoint
}

func classOf(s *nfsd.Server, shareDir string) map[string]string {
	return map[string]string{share.ParamServer: s.Addr(), share.ParamShare: "/" + shareDir}
}

// graceful waits for the end of the server's grace period, in which NFSv4 clients can
// only reclaim their locks.
func (c *co) graceful() {
	c.t.Helper()
	must(c.t, again(func() error {
		v, err := c.create("grace")
		if err != nil {
			return err
		}
		return c.delete(v.GetVolumeId())
	}))
}

func TestNFSSanity(t *testing.T) {
	s := nfsd.Start(t)
	source := s.Export("share", writable)
	endpoint := startNFS(t, "-exports", source)
	newCO(t, endpoint, classOf(s, "share")).graceful()
	drivertest.Sanity(t, endpoint, s.Addr(), "/share")
	wantShare(t, s.Dir("share"))
}

// TestNFSRules is TestRules with a server.
func TestNFSRules(t *testing.T) {
	s := nfsd.Start(t)
	source := s.Export("share", writable)
	t.Run("grace", func(t *testing.T) { newCO(t, startNFS(t), classOf(s, "share")).graceful() })
	dir := t.TempDir()
	drivertest.Rules(t, classOf(s, "share"), 1<<20, "nfsdriver", "-exports", source, "-mount-dir", dir)
	wantShare(t, s.Dir("share"))
	if m := mountsBelow(t, dir); len(m) > 0 {
		t.Errorf("mounts are left: %v", m)
	}
}

// The NFS client's cached attributes do not show all changes of a tree.
func TestNFSConsistentCopy(t *testing.T) {
	s := nfsd.Start(t)
	for _, version := range []string{"4.2", "3"} {
		t.Run(version, func(t *testing.T) {
			shareDir := "share" + version
			s.Export(shareDir, writable)
			c := newCO(t, startNFS(t), classOf(s, shareDir))
			c.flags = []string{"nolock,vers=" + version}
			from, to := c.mustCreate("from"), c.mustCreate("to")
			must(t, errors.Join(c.publish(from, "a"), c.publish(to, "b")))
			source, copied := s.Dir(shareDir+"/from"), s.Dir(shareDir+"/to")
			checkConsistentCopy(t, c.target("b"), c.target("a"), source)
			compareTrees(t, describe(t, copied), describe(t, source))
			for _, name := range []string{"moved to where the pass was", "removed while in it"} { // with names, and with handles, that are no more
				t.Run(name, func(t *testing.T) {
					dir := strings.ReplaceAll(name, " ", "-")
					in := func(target string) string { return filepath.Join(c.target(target), dir) }
					must(t, errors.Join(os.Mkdir(in("a"), 0o700), os.Mkdir(in("b"), 0o700)))
					checkConsistentCopyDirectories(t, in("b"), filepath.Join(copied, dir), in("a"), filepath.Join(source, dir), whileCopied[name])
				})
			}
			must(t, errors.Join(c.unpublish(from, "a"), c.unpublish(to, "b"), c.delete(from.GetVolumeId()), c.delete(to.GetVolumeId())))
			wantShare(t, s.Dir(shareDir))
		})
	}
}

// A tree with every kind of file survives a snapshot and its restore, and a clone.
func TestNFSTree(t *testing.T) {
	s := nfsd.Start(t)
	for _, version := range []string{"4.2", "4.1", "3"} {
		t.Run(version, func(t *testing.T) {
			shareDir := "share" + version
			s.Export(shareDir, writable)
			c := newCO(t, startNFS(t), classOf(s, shareDir))
			c.flags = []string{"nolock,vers=" + version}
			v := c.mustCreate("pvc-1")
			must(t, c.publish(v, "a"))
			t.Logf("the tree has %s", strings.Join(makeTree(t, c.target("a"), 10, 16<<20), ", "))
			// As a program on the server may have created them:
			must(t, unix.Setxattr(s.Dir(shareDir+"/pvc-1/readonly"), "system.posix_acl_access", posixACL(6, 4, 4711, 4, 4, 0), 0))
			if version == "3" { // And new directories may inherit one from the export. With version 4 Linux's server does not remove those.
				must(t, unix.Setxattr(filepath.Join(s.Dir(shareDir), storeName, dirTmp), "system.posix_acl_default", posixACL(7, 7, 4711, 7, 7, 5), 0))
			}
			want := describe(t, s.Dir(shareDir+"/pvc-1"))
			var id string
			var restored, clone *csi.Volume
			must(t, again(func() (err error) {
				id, err = c.snapshot("snap", v.GetVolumeId())
				return err
			}))
			must(t, os.WriteFile(filepath.Join(c.target("a"), "plain"), []byte("changed since"), 0))
			must(t, again(func() (err error) {
				restored, err = c.create("pvc-2", "snapshot", id)
				return err
			}))
			compare := func(subDir string) {
				t.Helper()
				got := describe(t, s.Dir(subDir))
				if version != "4.2" { // only that has SEEK: elsewhere holes are where zeros are
					got["sparse"] = want["sparse"]
				}
				compareTrees(t, got, want)
				sameSparse(t, s.Dir(shareDir+"/pvc-1/sparse"), s.Dir(subDir+"/sparse"))
			}
			compare(shareDir + "/pvc-2")
			must(t, again(func() (err error) {
				clone, err = c.create("pvc-3", "volume", restored.GetVolumeId())
				return err
			}))
			compare(shareDir + "/pvc-3")
			must(t, c.publish(restored, "b"))
			if data, err := os.ReadFile(filepath.Join(c.target("b"), "plain")); err != nil || string(data) != "precious" {
				t.Errorf("the pod reads %q (%v)", data, err)
			}
			must(t, errors.Join(c.unpublish(v, "a"), c.unpublish(restored, "b"), c.deleteSnapshot(id)))
			must(t, errors.Join(c.delete(v.GetVolumeId()), c.delete(restored.GetVolumeId()), c.delete(clone.GetVolumeId())))
			wantShare(t, s.Dir(shareDir))
		})
	}
}

// sameSparse expects the same content, and holes in the copy as well.
func sameSparse(t *testing.T, a, b string) {
	t.Helper()
	read := func(name string) []byte {
		f, err := os.OpenFile(name, unix.O_NOATIME, 0) // the copy is the next one's source, with its times
		must(t, err)
		defer f.Close()
		data, err := io.ReadAll(f)
		must(t, err)
		return data
	}
	var st unix.Stat_t
	must(t, unix.Stat(b, &st))
	if !bytes.Equal(read(a), read(b)) || st.Blocks*512 > st.Size/2 {
		t.Errorf("%s has %d bytes in %d blocks, and is not %s", b, st.Size, st.Blocks, a)
	}
}

func TestNFSBadInput(t *testing.T) {
	s := nfsd.Start(t)
	s.Export("share", writable)
	s.Export("readonly", "ro,no_root_squash")
	s.Export("squashed", "rw,root_squash")
	c := newCO(t, startNFS(t), classOf(s, "share"))
	c.graceful()
	for _, tt := range []struct {
		name, server, shareDir string
		code                   codes.Code
		words                  string
	}{
		{"unreachable", "198.18.255.254", "/share", codes.Unavailable, "198.18.255.254:2049"},
		{"no listener", "127.0.0.1", "/share", codes.Unavailable, "refused"},
		{"no such host", "nas.invalid", "/share", codes.Unavailable, "nas.invalid"},
		{"unknown export", s.Addr(), "/other", codes.FailedPrecondition, "mount.nfs"},
		{"read-only", s.Addr(), "/readonly", codes.FailedPrecondition, "export it read-write"},
		{"not for root", s.Addr(), "/squashed", codes.FailedPrecondition, "no_root_squash"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			start := time.Now()
			v, err := c.create("pvc "+tt.name, share.ParamServer, tt.server, share.ParamShare, tt.shareDir)
			t.Logf("answered after %v: %v %v", time.Since(start).Round(time.Millisecond), v, err)
			refused(t, err, tt.code, tt.words)
		})
	}
	t.Run("full", func(t *testing.T) {
		v := c.mustCreate("full")
		must(t, c.publish(v, "a"))
		fill(t, filepath.Join(c.target("a"), "fill"))
		_, err := c.snapshot("too much", v.GetVolumeId())
		refused(t, err, codes.ResourceExhausted, "no space")
		must(t, os.Truncate(filepath.Join(c.target("a"), "fill"), 0)) // pages that cannot be written keep a file that is removed
		must(t, os.Remove(filepath.Join(c.target("a"), "fill")))
		must(t, c.unpublish(v, "a"))
		must(t, c.delete(v.GetVolumeId()))
	})
	wantShare(t, s.Dir("share"))
}

func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	must(t, err)
	defer f.Close()
	buf := make([]byte, 1<<20)
	for err == nil {
		_, err = f.Write(buf)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

// The cost of an unresponsive server: callers for its volumes wait some seconds, others
// do not, and nothing is left behind when it is back.
//
// Two drivers are tested. One has a timeout of some seconds: it shows how long calls for
// the server take. The other one waits for ten minutes, so that its calls hold their
// resources until the server is back, however slow the machine is: if calls for another
// server needed any of those, they would not return before.
func TestNFSFaults(t *testing.T) {
	on := func(do func(*nfsd.Server)) func(*nfsd.Server, string) {
		return func(s *nfsd.Server, _ string) { do(s) }
	}
	s, healthy := nfsd.Start(t), nfsd.Start(t)
	var costs table
	defer costs.print()
	for _, f := range []struct {
		name       string
		begin, end func(s *nfsd.Server, shareDir string)
		hangs      bool // requests to the server wait until the fault ends
	}{
		{"nfsd stopped", on((*nfsd.Server).Stop), on((*nfsd.Server).Start), true},
		{"network drops", on((*nfsd.Server).Drop), on((*nfsd.Server).Reconnect), true},
		{"interface down", on((*nfsd.Server).Unplug), on((*nfsd.Server).Reconnect), true},
		{"export withdrawn", (*nfsd.Server).Withdraw, func(s *nfsd.Server, shareDir string) { s.Export(shareDir, writable) }, false},
		{"another file system", on((*nfsd.Server).Replace), on(func(*nfsd.Server) {}), false},
	} {
		t.Run(f.name, func(t *testing.T) {
			shareDir := strings.ReplaceAll(f.name, " ", "-")
			waits := newFaulty(t, s, healthy, shareDir+"-waits", "-server-timeout", "10m")
			// On a slow machine, a server that responds must not count as unresponsive.
			timeout := max(12*time.Second, 8*waits.well).Round(time.Second)
			x := newFaulty(t, s, healthy, shareDir, "-server-timeout", timeout.String())
			x.table = &costs
			costs.add("-server-timeout", shareDir, timeout.String())
			must(t, os.WriteFile(filepath.Join(x.target("a"), "file"), []byte("data"), 0o600))

			f.begin(s, shareDir)
			if f.hangs {
				waits.call()
			}
			x.costs = map[string]time.Duration{}
			create := func() error { _, err := x.create("pvc-3"); return err }
			x.timed("stats", func() error { return x.stats(x.v, "a") })
			x.timed("stats again", func() error { return x.stats(x.v, "b") })
			// The breaker stays closed for a server that responds, even with errors, or if it was
			// restarted and grants no locks yet.
			wantClosed := func(err error) {
				if !f.hangs && err != nil && strings.Contains(err.Error(), "next attempt") {
					t.Error(err)
				}
			}
			wantClosed(x.timed("create", create))
			wantClosed(x.timed("create again", create))
			wantClosed(x.timed("publish", func() error { return x.publish(x.w, "c") }))
			wantClosed(x.timed("publish what is published", func() error { return x.publish(x.v, "a") }))
			wantClosed(x.timed("delete", func() error { return x.delete(x.w.GetVolumeId()) }))
			must(t, x.timed("unpublish", func() error { return x.unpublish(x.v, "b") }))
			x.gone("b")
			promised := x.slowest()
			x.healthy("another server")
			waits.healthy("another server")
			waits.returned(false)

			f.end(s, shareDir)
			waits.returned(true)
			waits.end("a", "b", "c")
			x.timed("back: create", func() error { return again(create) })
			err := x.timed("back: publish", func() error { return again(func() error { return x.publish(x.v, "c") }) })
			if f.name == "another file system" { // which the volume is not on
				refused(t, err, codes.NotFound, "No such file or directory")
			} else {
				must(t, err)
				if data, err := os.ReadFile(filepath.Join(x.target("c"), "file")); err != nil || string(data) != "data" {
					t.Errorf("the pod reads %q (%v)", data, err)
				}
			}
			x.costs = map[string]time.Duration{}
			x.healthy("well again")
			x.end("a", "c")
			wantShare(t, s.Dir(shareDir))
			// A third of the timeout is reserved for unpublishing.
			if bound := timeout * 4 / 3; promised > bound+10*max(x.well, x.slowest()) {
				t.Errorf("a call took %v, and %v was promised; when nothing is wrong, one takes up to %v here", promised, bound, max(x.well, x.slowest()))
			}
		})
	}
}

// faulty is a driver with two servers: one will have a fault, the other one not.
type faulty struct {
	*co
	other    *co
	v, w, u  *csi.Volume // v is published at "a" and "b", w nowhere, and u, which is the other server's, at "a"
	shareDir string
	well     time.Duration // the slowest call when nothing was wrong
	costs    map[string]time.Duration
	table    *table // of the costs; may be nil
	pending  map[string]chan error
}

func newFaulty(t *testing.T, s, healthy *nfsd.Server, shareDir string, args ...string) *faulty {
	s.Export(shareDir, writable)
	healthy.Export(shareDir, writable)
	endpoint := startNFS(t, args...)
	x := &faulty{co: newCO(t, endpoint, classOf(s, shareDir)), other: newCO(t, endpoint, classOf(healthy, shareDir)), shareDir: shareDir, costs: map[string]time.Duration{}}
	x.graceful()
	x.other.graceful()
	x.u = x.other.mustCreate("pvc-1")
	must(t, x.other.publish(x.u, "a"))
	must(t, x.timed("well: create", func() (err error) { x.v, err = x.create("pvc-1"); return err }))
	must(t, x.timed("well: publish", func() error { return x.publish(x.v, "a") }))
	must(t, x.timed("well: publish", func() error { return x.publish(x.v, "b") }))
	must(t, x.timed("well: stats", func() error { return x.stats(x.v, "a") }))
	x.w = x.mustCreate("pvc-2")
	x.well = x.slowest()
	return x
}

// timed prints how long a call takes, and records it.
func (x *faulty) timed(what string, do func() error) error {
	start := time.Now()
	err := do()
	took := time.Since(start)
	text := "ok"
	if err != nil {
		text = err.Error()
	}
	x.t.Logf("%-25s %-32s %8.3f s  %.160s", x.shareDir, what, took.Seconds(), text)
	x.costs[what] = max(x.costs[what], took)
	x.table.add(what, x.shareDir, fmt.Sprintf("%.1f s %v", took.Seconds(), status.Code(err)))
	return err
}

// table prints how long calls take with each fault.
type table struct {
	rows, columns []string
	cells         map[string]string
}

func (t *table) add(row, column, text string) {
	if t == nil {
		return
	}
	if t.cells == nil {
		t.cells = map[string]string{}
	}
	if !slices.Contains(t.rows, row) {
		t.rows = append(t.rows, row)
	}
	if !slices.Contains(t.columns, column) {
		t.columns = append(t.columns, column)
	}
	t.cells[row+"\x00"+column] = text
}

// print writes lines that test/vm prints.
func (t *table) print() {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "# \t%s\n", strings.Join(t.columns, "\t"))
	for _, row := range t.rows {
		fmt.Fprintf(w, "# %s", row)
		for _, column := range t.columns {
			fmt.Fprintf(w, "\t%s", t.cells[row+"\x00"+column])
		}
		fmt.Fprintln(w)
	}
	w.Flush()
}

func (x *faulty) slowest() time.Duration { return slices.Max(slices.Collect(maps.Values(x.costs))) }

// healthy makes calls for the other server, which succeed.
func (x *faulty) healthy(when string) {
	x.t.Helper()
	var v *csi.Volume
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"create", func() (err error) { v, err = x.other.create("pvc-9"); return err }},
		{"publish", func() error { return x.other.publish(v, "b") }},
		{"stats", func() error { return x.other.stats(x.u, "a") }},
		{"unpublish", func() error { return x.other.unpublish(v, "b") }},
		{"delete", func() error { return x.other.delete(v.GetVolumeId()) }},
	} {
		must(x.t, x.timed(when+": "+step.what, step.do))
	}
}

// call starts calls for the server that has a fault.
func (x *faulty) call() {
	x.timeout = 10 * time.Minute
	x.pending = map[string]chan error{}
	for what, do := range map[string]func() error{
		"create":                    func() error { _, err := x.create("pvc-3"); return err },
		"publish":                   func() error { return x.publish(x.v, "c") },
		"publish what is published": func() error { return x.publish(x.v, "a") },
		"delete":                    func() error { return x.delete(x.w.GetVolumeId()) },
	} {
		done := make(chan error, 1)
		x.pending[what] = done
		go func() { done <- do() }()
	}
}

// returned expects all of the calls to succeed, and waits for them, or none of them to
// have returned.
func (x *faulty) returned(all bool) {
	x.t.Helper()
	for what, done := range x.pending {
		if all {
			must(x.t, x.timed("back, waited for: "+what, func() error { return <-done }))
		} else if len(done) > 0 {
			x.t.Errorf("%s did not wait for the server: %v", what, <-done)
			delete(x.pending, what)
		}
	}
}

// end unpublishes v and deletes all volumes, and expects nothing to be mounted.
func (x *faulty) end(targets ...string) {
	x.t.Helper()
	for _, target := range targets {
		must(x.t, again(func() error { return x.unpublish(x.v, target) }))
	}
	for _, v := range []*csi.Volume{x.v, x.w} {
		must(x.t, again(func() error { return x.delete(v.GetVolumeId()) }))
	}
	v, err := x.create("pvc-3")
	must(x.t, err)
	must(x.t, errors.Join(x.delete(v.GetVolumeId()), x.other.unpublish(x.u, "a"), x.other.delete(x.u.GetVolumeId())))
	for _, c := range []*co{x.co, x.other} {
		if m := mountsBelow(x.t, c.pods); len(m) > 0 {
			x.t.Errorf("mounts are left: %v", m)
		}
	}
}

// The driver and the mount helpers are killed at random, while pods start and end. COs
// retry interrupted calls, and at the end everything is done and nothing is left behind.
func TestNFSKills(t *testing.T) {
	gate.Tools(t, "pgrep")
	s := nfsd.Start(t)
	s.Export("share", writable)
	dir := t.TempDir()
	endpoint := "unix://" + filepath.Join(dir, "csi.sock")
	log, err := os.Create(filepath.Join(dir, "log"))
	must(t, err)
	defer log.Close()
	start := func() *exec.Cmd {
		driver := gate.RoleCommand(context.Background(), "nfsdriver", "-endpoint", endpoint, "-node-id", "node",
			"-mount-dir", filepath.Join(dir, "mnt"), "-exports", s.Addr()+":/share")
		driver.Stdout, driver.Stderr = log, log
		must(t, driver.Start())
		return driver
	}
	driver := start()
	c := newCO(t, endpoint, classOf(s, "share"))
	c.timeout = 20 * time.Second // a call that the driver died with is not waited for
	c.graceful()
	done := make(chan error, 3)
	for pod := range cap(done) {
		go func() { done <- c.life(pod, 3) }()
	}
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewSource(seed))
	kills, helpers := 0, 0
	for left := cap(done); left > 0; {
		var next <-chan time.Time
		if kills < 20 { // on a slow machine, nothing would be done between two of them
			next = time.After(time.Duration(500+random.Intn(2500)) * time.Millisecond)
		}
		select {
		case err := <-done:
			left--
			if err != nil {
				t.Error(err)
			}
			continue
		case <-next:
		}
		if random.Intn(2) == 0 {
			_ = driver.Process.Kill()
			_ = driver.Wait()
			driver = start()
			kills++
			continue
		}
		out, _ := exec.Command("pgrep", "-P", fmt.Sprint(driver.Process.Pid)).Output()
		for _, pid := range strings.Fields(string(out)) {
			n, _ := strconv.Atoi(pid)
			_ = unix.Kill(n, unix.SIGKILL)
			helpers++
		}
	}
	fmt.Printf("# killed %d drivers and %d helpers\n", kills, helpers)
	wantShare(t, s.Dir("share"))
	must(t, driver.Process.Signal(unix.SIGTERM))
	if err := driver.Wait(); err != nil {
		t.Errorf("the driver after SIGTERM: %v", err)
	}
	for _, m := range append(mountsBelow(t, dir), mountsBelow(t, c.pods)...) {
		t.Errorf("%s is still mounted", m)
		unix.Unmount(m, unix.MNT_FORCE|unix.MNT_DETACH)
	}
	if t.Failed() {
		text, _ := os.ReadFile(log.Name())
		t.Logf("%s", text)
	}
}

// life runs the lifecycle of a volume several times: written by one pod, read by another
// one from a clone, and deleted.
func (c *co) life(pod, times int) error {
	for n := range times {
		name := fmt.Sprintf("pvc-%d-%d", pod, n)
		var v, clone *csi.Volume
		file := func(target string) string { return filepath.Join(c.target(target), "file") }
		steps := []func() error{
			func() (err error) { v, err = c.create(name); return err },
			func() error { return c.publish(v, name) },
			func() error { return os.WriteFile(file(name), []byte(name), 0o600) },
			func() (err error) { clone, err = c.create(name+"-clone", "volume", v.GetVolumeId()); return err },
			func() error { return c.publish(clone, name+"-clone", readOnly) },
			func() error {
				data, err := os.ReadFile(file(name + "-clone"))
				if err == nil && string(data) != name {
					err = fmt.Errorf("the clone has %q", data)
				}
				return err
			},
			func() error { return c.unpublish(v, name) },
			func() error { return c.unpublish(clone, name+"-clone") },
			func() error { return c.delete(v.GetVolumeId()) },
			func() error { return c.delete(clone.GetVolumeId()) },
		}
		for i, step := range steps {
			err := again(step)
			for err != nil && strings.Contains(err.Error(), "signal: killed") { // final: nothing is mounted, and the CO starts again
				err = again(step)
			}
			if err != nil {
				return fmt.Errorf("%s, step %d: %w", name, i, err)
			}
		}
		c.gone(name)
		c.gone(name + "-clone")
	}
	return nil
}
