package nodeops

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/csikit/csikit/blocking"
	"k8s.io/utils/exec"
)

// Config is what a [Node] is made of. The zero value works.
type Config struct {
	// Logger gets a line before each mkfs (warning level) and one per program
	// run (debug level). nil discards them.
	Logger *slog.Logger

	// Exec starts the programs. nil starts them in a process group of their own
	// that is killed as a whole.
	Exec exec.Interface

	// Blocking runs what the kernel may block; share one to see all stuck work
	// in one place. nil makes one for this Node.
	Blocking *blocking.Group
}

// Node does the node half of a CSI driver. Make one with [New].
type Node struct {
	log      *slog.Logger
	exec     exec.Interface
	blocking *blocking.Group
}

// New returns a Node. It starts nothing and touches nothing.
func New(cfg Config) (*Node, error) {
	n := &Node{log: cfg.Logger, exec: cfg.Exec, blocking: cfg.Blocking}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	if n.exec == nil {
		n.exec = newRunner()
	}
	if n.blocking == nil {
		n.blocking = new(blocking.Group)
	}
	return n, nil
}

// Device is the block device that holds a volume. What is given besides Path is
// checked on the open descriptor before the device is used: a device path may
// name another disk than a moment ago.
type Device struct {
	Path   string // "/dev/…"; symlinks such as /dev/disk/by-id/… are followed
	Serial string // as sysfs shows it
	WWID   string // as sysfs shows it
	Size   int64  // bytes, exactly
}

// Inspect lists the work that is under way, oldest first: the key is the path
// that is worked on. What has stood there for minutes hangs in the kernel.
func (n *Node) Inspect() []blocking.Call { return n.blocking.Snapshot() }

// run does fn as the only work on path and gives up waiting, not working, when
// ctx ends. Who finds work on the path under way waits for it and then does its
// own: the other call may have asked for something else, and what it did in our
// favour is found and taken for done.
func (n *Node) run(ctx context.Context, op, volumeID, path string, fn func() error) error {
	for {
		_, joined, err := n.blocking.Do(ctx, filepath.Clean(path), func() (any, error) { return nil, fn() })
		if err == nil && !joined {
			return nil
		}
		var pending *blocking.PendingError
		if joined && ctx.Err() == nil && !errors.As(err, &pending) {
			continue
		}
		return wrap(op, volumeID, path, err)
	}
}
