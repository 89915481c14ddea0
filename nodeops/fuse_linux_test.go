package nodeops

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
)

// fuse is a file system with one file, named file, whose server can hang or end, like that of a network file
// system. See include/uapi/linux/fuse.h. The server is a separate process: otherwise a test
// that fails while it waits for the server could not be killed.
type fuse struct {
	server    *exec.Cmd
	hangs     fuseSwitch
	requested chan struct{} // receives once a request hangs
	die       func()        // ends the server: requests fail with ENOTCONN from now on
}

// fuseSwitch makes the server hang or respond.
type fuseSwitch struct {
	to   io.Writer
	done chan struct{}
}

func (s fuseSwitch) Store(hang bool) {
	fmt.Fprintln(s.to, hang)
	<-s.done
}

// mountFuse mounts one; the caller unmounts it.
func mountFuse(t testing.TB, path string) *fuse {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) { // some machines allow it only for root
		gate.Root(t)
	}
	ok(t, err)
	dev := os.NewFile(uintptr(fd), "/dev/fuse")
	defer dev.Close()
	ok(t, unix.Mount("server", path, "fuse", unix.MS_NOSUID|unix.MS_NODEV,
		fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)))
	server := gate.RoleCommand(context.Background(), "fuse")
	server.ExtraFiles = []*os.File{dev}
	server.Stderr = os.Stderr
	in, err := server.StdinPipe()
	ok(t, err)
	out, err := server.StdoutPipe()
	ok(t, err)
	ok(t, server.Start())
	f := &fuse{server: server, hangs: fuseSwitch{in, make(chan struct{})}, requested: make(chan struct{}, 1)}
	ready, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			switch lines.Text() {
			case "ready":
				close(ready)
			case "done":
				f.hangs.done <- struct{}{}
			case "requested":
				select {
				case f.requested <- struct{}{}:
				default:
				}
			}
		}
	}()
	f.die = sync.OnceFunc(func() {
		_ = server.Process.Kill()
		<-over
		_ = server.Wait()
	})
	t.Cleanup(func() {
		f.die()
		for {
			if more, err := mountapi.Detach(path); err != nil || !more {
				return
			}
		}
	})
	select {
	case <-ready:
	case <-over:
		t.Fatal("the FUSE server ended")
	}
	return f
}

func init() { roles = append(roles, gate.WithRole("fuse", fuseRole)) }

// fuseRole serves the file system of the device that is its descriptor 3. It ends with its
// input, or after a timeout.
func fuseRole() {
	time.AfterFunc(2*time.Minute, func() { os.Exit(1) })
	var hangs atomic.Bool
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			hangs.Store(lines.Text() == "true")
			fmt.Println("done")
		}
		os.Exit(0)
	}()
	le := binary.LittleEndian // of amd64 and arm64
	buf := make([]byte, 256<<10)
	for {
		n, err := unix.Read(3, buf)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) { // the request was aborted
			continue
		}
		if err != nil || n < 40 {
			os.Exit(0)
		}
		opcode, unique := le.Uint32(buf[4:]), le.Uint64(buf[8:])
		var body []byte
		errno := int32(0)
		switch opcode {
		case 2, 36, 42: // FORGET, INTERRUPT, BATCH_FORGET: not to be answered
			continue
		case 26: // INIT
			body = make([]byte, 64)
			le.PutUint32(body[0:], 7)
			le.PutUint32(body[4:], 31)
			le.PutUint32(body[20:], 4096) // max_write
		case 1: // LOOKUP; never cached
			if string(buf[40:n]) != "file\x00" {
				errno = -int32(unix.ENOENT)
				break
			}
			body = make([]byte, 40+88)
			le.PutUint64(body[0:], 2)
			le.PutUint64(body[40:], 2)
			le.PutUint32(body[40+60:], unix.S_IFREG|0o644)
			le.PutUint32(body[40+64:], 1)
		case 3: // GETATTR, of the root or the file; never cached
			body = make([]byte, 16+88)
			id, mode := le.Uint64(buf[16:]), uint32(unix.S_IFDIR|0o755)
			if id == 2 {
				mode = unix.S_IFREG | 0o644
			}
			le.PutUint64(body[16:], id)
			le.PutUint32(body[16+60:], mode)
			le.PutUint32(body[16+64:], 2)
		case 17: // STATFS
			body = make([]byte, 80)
			le.PutUint64(body[0:], 100)   // blocks
			le.PutUint32(body[40:], 4096) // bsize
			le.PutUint32(body[48:], 4096) // frsize
		case 27: // OPENDIR
			body = make([]byte, 16)
		case 28, 29, 38: // READDIR, RELEASEDIR, DESTROY
		default:
			errno = -int32(unix.ENOSYS)
		}
		if hangs.Load() {
			fmt.Println("requested")
			continue
		}
		out := make([]byte, 16, 16+len(body))
		le.PutUint32(out[0:], uint32(16+len(body)))
		le.PutUint32(out[4:], uint32(errno))
		le.PutUint64(out[8:], unique)
		_, _ = unix.Write(3, append(out, body...)) // fails if the process that sent the request has ended
		if opcode == 26 {
			fmt.Println("ready")
		}
	}
}
