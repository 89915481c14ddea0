package nodeops

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/mountapi"
)

// PublishShareRequest is the request of [Node.PublishShare].
type PublishShareRequest struct {
	VolumeID   string
	Source     string   // as the mount helper takes it: "server:/path", "//server/share", "[fd00::1]:/path"
	FSType     string   // "nfs", "cifs", "fuse.sshfs", ...: the program mount.<FSType> is run
	TargetPath string   // absolute; created by this call, its parent must exist
	MountFlags []string // for volume_mount_group with the file system's own, such as "gid=4711"; see Mount groups
	ReadOnly   bool
	Exclusive  bool // refuse if the source is published at another path already (the SINGLE_NODE_WRITER modes; see Two pods of one node)

	// Sensitive are additional mount flags, such as passwords. They appear in no log, span
	// or error. The command line of the running helper shows them to every process of the
	// node, so use a credentials file if the helper supports one.
	Sensitive []string
}

// PublishShare mounts the network file system at the target path, which it creates, with
// its mount helper. A helper that has not ended after Config.HelperTimeout is killed with
// all the processes that it started: the error is DEADLINE_EXCEEDED, nothing stays in
// flight, and the target is as it was before. A helper is also killed when this process
// ends.
//
// It is idempotent. A mount at the target must have the requested source, type, access,
// mount flags, protocol version, security flavour and group (a number), or the error is csierr.Conflict with
// every difference. The source of a FUSE file system is not compared, since FUSE servers
// set any; a helper that mounts a type other than its own name (such as NFS under another
// name) is not supported. A corrupted or stale mount (ENOTCONN, ESTALE, EIO and the like;
// the check itself may block) is replaced. A share that does not exist on the server is
// csierr.NotFound, if the helper reports that. On an error the target is as it was before,
// except that corrupted mounts may have been unmounted.
func (n *Node) PublishShare(ctx context.Context, r PublishShareRequest) error {
	const op = "publish"
	s, err := checkShare(r)
	if err != nil {
		return wrap(op, r.VolumeID, r.TargetPath, err)
	}
	return n.runMount(ctx, op, r.VolumeID, r.TargetPath, func(ctx context.Context, target resolvedPath) error {
		return n.publishShare(ctx, s, target)
	})
}

// share is a PublishShareRequest that was checked.
type share struct {
	source, fsType string
	opts           mountapi.Options // all of them
	sensitive      []string         // those of opts that must not be shown
	exclusive      bool
}

var fsTypeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_+-]*(\.[A-Za-z0-9_+-]+)*$`)

// credential matches names of mount flags whose values are never shown, even if a driver
// does not pass them in Sensitive.
var credential = regexp.MustCompile(`(?i)pass|secret|token|key`)

func checkShare(r PublishShareRequest) (share, error) {
	if err := checkPath(r.TargetPath); err != nil {
		return share{}, err
	}
	// It becomes an argument of a program.
	if r.Source == "" || strings.HasPrefix(r.Source, "-") || strings.ContainsAny(r.Source, "\x00\n") {
		return share{}, faultf(csierr.Invalid, "source %q of the share is empty, starts with a dash, or contains a NUL or a line break", r.Source)
	}
	if !fsTypeName.MatchString(r.FSType) {
		return share{}, faultf(csierr.Invalid, "file system type %q is not a valid name", r.FSType)
	}
	opts, err := parseFlags(r.MountFlags, false)
	if err != nil {
		return share{}, err
	}
	secret, err := mountapi.ParseOptions(r.Sensitive)
	if err != nil {
		return share{}, faultf(csierr.Invalid, "a sensitive mount flag requests another kind of mount, contains a NUL byte, or has an unclosed double quote")
	}
	opts.Attr |= secret.Attr
	hidden := slices.Clone(secret.Data)
	for _, o := range opts.Data {
		if key, _, _ := strings.Cut(o, "="); credential.MatchString(key) {
			hidden = append(hidden, o)
		}
	}
	opts.Data = append(opts.Data, secret.Data...)
	// nfs(5): mount.nfs then returns success, leaves its process group, and mounts when the
	// server responds, on a path that may belong to another volume by then.
	if slices.Contains(opts.Data, "bg") {
		return share{}, faultf(csierr.Invalid, "mount flag bg mounts in the background, after this call has returned: remove it")
	}
	if r.ReadOnly {
		opts.Attr |= mountapi.ReadOnly
	}
	return share{r.Source, r.FSType, opts, hidden, r.Exclusive}, nil
}
