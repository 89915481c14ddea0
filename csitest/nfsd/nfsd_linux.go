package nfsd

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csikit/csikit/csitest/gate"
)

// size of the server's file system, in MiB.
const size = 256

// A Server is the kernel's NFS server, for versions 3 and 4.0 to 4.2. Its methods end
// the test when they fail; none may be called concurrently.
type Server struct {
	t      testing.TB
	pid    int // of the first process in its namespaces
	addr   string
	image  string
	stdin  io.Closer
	ended  chan struct{}
	output bytes.Buffer

	exports map[string]string // options by name
}

// root is where the server has its file system, in its own mount namespace, and what it
// calls /: NFSv4 shows the path to an export, too, and not all roots can be shown.
const root = "/mnt"

// The first process: where its input ends, because the test is over or was killed, the
// kernel's threads are stopped, for they do not belong to any process.
const first = `
set -e
mount --make-rprivate /
for d in /run /var/lib/nfs; do mount -t tmpfs tmpfs $d; done
mkdir -p /run/rpcbind /run/lock /var/lib/nfs/sm /var/lib/nfs/sm.bak /var/lib/nfs/v4recovery /var/lib/nfs/nfsdcld /run/rpc_pipefs /var/lib/nfs/rpc_pipefs
printf '[exports]\nrootdir=/mnt\n' >/run/nfs.conf
mount --bind /run/nfs.conf /etc/nfs.conf
mount --bind /dev/null /etc/exports
[ ! -e /etc/exports.d ] || mount -t tmpfs tmpfs /etc/exports.d
touch /var/lib/nfs/etab /var/lib/nfs/rmtab /var/lib/nfs/state
mount -t nfsd nfsd /proc/fs/nfsd
mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs
mount -t rpc_pipefs rpc_pipefs /var/lib/nfs/rpc_pipefs
mount -o loop "$1" /mnt
ip link set lo up
echo ready
read _ || true
rpc.nfsd 0
exportfs -ua || true
kill -9 -1 || true
i=0
until umount /mnt 2>/dev/null || [ $i = 100 ]; do i=$((i + 1)); sleep 0.1; done
`

const daemons = "rpcbind -w; rpc.mountd; nfsdcld"

// Start starts a server that exports nothing yet, and stops it when the test is over.
// What is mounted from it must be unmounted by then: cleanups that do so are to be
// registered after the call.
func Start(t testing.TB) *Server {
	t.Helper()
	gate.Root(t)
	gate.Modules(t, "nfsd", "nfs", "veth", "loop")
	gate.Tools(t, "rpc.nfsd", "rpc.mountd", "exportfs", "rpcbind", "nfsdcld", "mount.nfs", "ip", "iptables", "nsenter", "mke2fs", "losetup")
	dir, err := os.MkdirTemp("", "nfsd")
	s := &Server{t: t, exports: map[string]string{}, ended: make(chan struct{}), image: filepath.Join(dir, "image")}
	s.ok(err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	s.format()

	cmd := exec.Command("sh", "-c", first, "sh", s.image)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	cmd.Stderr = &s.output
	stdin, err := cmd.StdinPipe()
	s.ok(err)
	stdout, err := cmd.StdoutPipe()
	s.ok(err)
	s.ok(cmd.Start())
	s.pid, s.stdin = cmd.Process.Pid, stdin
	t.Cleanup(func() {
		s.reconnect()
		stdin.Close()
		select {
		case <-s.ended:
		case <-time.After(time.Minute):
			t.Errorf("the NFS server does not stop")
			_ = cmd.Process.Kill()
			<-s.ended
		}
	})
	ready := make([]byte, len("ready\n"))
	_, err = io.ReadFull(stdout, ready)
	go func() {
		// Not before the read: it closes the pipe.
		if err := cmd.Wait(); err != nil {
			t.Errorf("the NFS server's first process: %v: %s", err, s.output.String())
		}
		close(s.ended)
	}()
	if err != nil {
		<-s.ended
		t.FailNow()
	}

	// 198.18.0.0/15 is for tests, RFC 2544.
	link, net := fmt.Sprintf("nfsd%d", s.pid), fmt.Sprintf("198.18.%d.%d", s.pid>>6&0xff, s.pid&0x3f<<2)
	at := strings.LastIndexByte(net, '.')
	var last int
	fmt.Sscan(net[at+1:], &last)
	client := fmt.Sprintf("%s.%d", net[:at], last+1)
	s.addr = fmt.Sprintf("%s.%d", net[:at], last+2)
	s.host("ip", "link", "add", link, "type", "veth", "peer", "name", "server", "netns", fmt.Sprint(s.pid))
	s.host("ip", "addr", "add", client+"/30", "dev", link)
	s.host("ip", "link", "set", link, "up")
	s.sh("ip addr add " + s.addr + "/30 dev server; ip link set server up")
	s.sh(daemons)
	s.Start()
	return s
}

func (s *Server) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// host runs a program where the test is.
func (s *Server) host(name string, args ...string) {
	s.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		s.t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// sh runs a script where the server is.
func (s *Server) sh(script string) {
	s.t.Helper()
	if out, err := s.try(script); err != nil {
		s.t.Fatalf("on the NFS server: %s: %v: %s", script, err, out)
	}
}

func (s *Server) try(script string) ([]byte, error) {
	// Daemons keep the output open: a pipe would be read for ever.
	out, err := os.CreateTemp("", "nfsd")
	if err != nil {
		return nil, err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	cmd := exec.Command("nsenter", "-t", fmt.Sprint(s.pid), "-n", "-m", "-p", "sh", "-ec", script)
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	text, _ := os.ReadFile(out.Name())
	return bytes.TrimSpace(text), err
}

// Addr is the server's address.
func (s *Server) Addr() string { return s.addr }

// Dir is where the test finds the directory that is exported as name.
func (s *Server) Dir(name string) string {
	return filepath.Join("/proc", fmt.Sprint(s.pid), "root", root, name)
}

// Export exports a directory, which it makes, with options of exports(5), or changes the
// options. It returns what clients mount.
func (s *Server) Export(name, options string) (source string) {
	s.t.Helper()
	s.exports[name] = options
	s.sh(s.export(name))
	return s.addr + ":/" + name
}

func (s *Server) export(name string) string {
	return fmt.Sprintf("mkdir -p %[1]s/%[2]s; exportfs -o no_subtree_check,%[3]s '*:/%[2]s'; ", root, name, s.exports[name])
}

// Withdraw ends an export, for those that have it mounted as well; Export brings it back.
func (s *Server) Withdraw(name string) {
	s.t.Helper()
	delete(s.exports, name)
	s.sh(fmt.Sprintf("exportfs -u '*:/%s'; exportfs -f", name))
}

// Stop stops the server; its machine lives, and refuses connections.
func (s *Server) Stop() {
	s.t.Helper()
	s.sh("rpc.nfsd 0")
}

// Start starts the server again after Stop.
func (s *Server) Start() {
	s.t.Helper()
	// The least that the kernel takes. Clients that are known claim what they had open,
	// and the time of grace is over; nfsdcld remembers them.
	s.sh("rpc.nfsd --grace-time 10 --lease-time 10 4")
}

// Replace restarts the server with another file system, empty but for the exported
// directories: what clients have mounted is stale.
func (s *Server) Replace() {
	s.t.Helper()
	s.Stop()
	s.sh("exportfs -ua; kill -9 -1") // mountd works in that file system
	s.sh("i=0; until umount " + root + " || [ $i = 100 ]; do i=$((i + 1)); sleep 0.1; done")
	s.format()
	s.sh("mount -o loop " + s.image + " " + root + "; " + daemons)
	for name := range s.exports {
		s.sh(s.export(name))
	}
	s.Start()
}

func (s *Server) format() {
	s.t.Helper()
	s.ok(os.RemoveAll(s.image))
	f, err := os.Create(s.image)
	s.ok(err)
	s.ok(f.Truncate(size << 20))
	s.ok(f.Close())
	s.host("mke2fs", "-q", "-t", "ext4", s.image)
}

// Drop makes the network lose every packet to and from the server.
func (s *Server) Drop() {
	s.t.Helper()
	s.sh("iptables -I INPUT -j DROP; iptables -I OUTPUT -j DROP")
}

// Unplug takes the server's network interface down.
func (s *Server) Unplug() {
	s.t.Helper()
	s.sh("ip link set server down")
}

// Mend undoes Drop and Unplug.
func (s *Server) Mend() {
	s.t.Helper()
	if out, err := s.reconnect(); err != nil {
		s.t.Fatalf("reconnect the network: %v: %s", err, out)
	}
}

func (s *Server) reconnect() ([]byte, error) {
	return s.try("iptables -F; ip link set server up")
}
