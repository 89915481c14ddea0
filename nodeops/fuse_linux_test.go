package nodeops

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
)

// fuse is an empty file system whose server can hang or die, as a network file
// system's can. See include/uapi/linux/fuse.h.
type fuse struct {
	dev   *os.File
	hangs atomic.Bool
	ready chan struct{} // closed once the kernel was greeted
	asked chan struct{} // has an element once a request hangs
}

// mountFuse mounts one; whoever calls it unmounts it.
func mountFuse(t testing.TB, path string) *fuse {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) { // some machines keep it for root
		gate.Root(t)
	}
	ok(t, err)
	ok(t, unix.Mount("server", path, "fuse", unix.MS_NOSUID|unix.MS_NODEV,
		fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)))
	dev := os.NewFile(uintptr(fd), "/dev/fuse") // it can be waited for only now
	f := &fuse{dev: dev, ready: make(chan struct{}), asked: make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() { defer close(done); f.serve() }()
	<-f.ready
	t.Cleanup(func() {
		f.die()
		<-done
		for {
			if more, err := mountapi.Detach(path); err != nil || !more {
				return
			}
		}
	})
	return f
}

// die ends the server: what is asked from now on is answered with ENOTCONN.
func (f *fuse) die() { f.dev.Close() }

func (f *fuse) serve() {
	le := binary.LittleEndian // of amd64 and arm64
	buf := make([]byte, 256<<10)
	for {
		n, err := f.dev.Read(buf)
		if err != nil || n < 40 {
			return
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
		case 3: // GETATTR, of the root; never cached
			body = make([]byte, 16+88)
			le.PutUint64(body[16:], 1)
			le.PutUint32(body[16+60:], unix.S_IFDIR|0o755)
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
		if f.hangs.Load() {
			select {
			case f.asked <- struct{}{}:
			default:
			}
			continue
		}
		out := make([]byte, 16, 16+len(body))
		le.PutUint32(out[0:], uint32(16+len(body)))
		le.PutUint32(out[4:], uint32(errno))
		le.PutUint64(out[8:], unique)
		f.dev.Write(append(out, body...))
		if opcode == 26 {
			close(f.ready)
		}
	}
}
