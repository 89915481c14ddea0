package nodeops

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/csikit/csikit/internal/mountapi"
)

// PublishShareRequest asks for a network file system to be mounted at a pod's path.
type PublishShareRequest struct {
	VolumeID   string
	Source     string // as the mount helper takes it: "server:/path", "//server/share", "[fd00::1]:/path"
	FSType     string // "nfs", "cifs", "fuse.sshfs", ...: the program mount.<FSType> is run
	TargetPath string // absolute; made by Publish, its parent must exist
	MountFlags []string
	ReadOnly   bool
	Exclusive  bool // refuse when the source is published at another path already (the SINGLE_NODE_WRITER modes)

	// Sensitive are more mount flags, such as passwords. They appear in no log, span
	// or error. While the helper runs its command line shows them to every process
	// of the node, so a file of credentials is better where the helper knows one.
	Sensitive []string
}

// PublishShare mounts the network file system at the target path, which it makes,
// by its mount helper. A helper that has not ended after Config.HelperTimeout is
// killed with all the processes that it started, and nothing of it goes on: what
// comes back is DEADLINE_EXCEEDED, and the target is as it was before. A helper dies with
// this process as well.
//
// It is idempotent. What is mounted at the target already must have the same
// source, type, access, mount flags, protocol version and security flavour, or it is
// KindConflict with every difference; of a FUSE file system, which shows what it
// likes, the source is not compared, and types that a helper only stands for (such
// as one that mounts NFS under a name of its own) are not known. A mount that is
// dead (ENOTCONN, ESTALE, EIO and their like, for which it is asked and may not answer)
// is taken away and made anew. A share that the server does not have is KindNotFound,
// as far as the helper says so. On an error the target is as it was before, but for
// dead mounts that are gone.
func (n *Node) PublishShare(ctx context.Context, r PublishShareRequest) error {
	const op = "publish"
	s, err := checkShare(r)
	if err != nil {
		return wrap(op, r.VolumeID, r.TargetPath, err)
	}
	return n.runMount(ctx, op, r.VolumeID, r.TargetPath, func(ctx context.Context) error {
		return n.publishShare(ctx, s, r.TargetPath)
	})
}

// share is a PublishShareRequest that was read.
type share struct {
	source, fsType string
	opts           mountapi.Options // all of them
	sensitive      []string         // those of opts that are not to be shown
	exclusive      bool
}

var fsTypeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_+-]*(\.[A-Za-z0-9_+-]+)*$`)

// credential is the name of a mount flag whose value is not shown in any case: not all
// who should use Sensitive will.
var credential = regexp.MustCompile(`(?i)pass|secret|token|key`)

func checkShare(r PublishShareRequest) (share, error) {
	if err := checkPath(r.TargetPath); err != nil {
		return share{}, err
	}
	// It becomes an argument of a program.
	if r.Source == "" || strings.HasPrefix(r.Source, "-") || strings.ContainsAny(r.Source, "\x00\n") {
		return share{}, faultf(KindInvalid, "source %q of the share: empty, an option, or with a NUL or a line break in it", r.Source)
	}
	if !fsTypeName.MatchString(r.FSType) {
		return share{}, faultf(KindInvalid, "file system type %q is not the name of one", r.FSType)
	}
	opts, err := parseFlags(r.MountFlags, false)
	if err != nil {
		return share{}, err
	}
	secret, err := mountapi.ParseOptions(r.Sensitive)
	if err != nil {
		return share{}, faultf(KindInvalid, "a sensitive mount flag asks for another kind of mount, has a NUL byte, or a double quote in it is not closed")
	}
	opts.Attr |= secret.Attr
	hidden := slices.Clone(secret.Data)
	for _, o := range opts.Data {
		if key, _, _ := strings.Cut(o, "="); credential.MatchString(key) {
			hidden = append(hidden, o)
		}
	}
	opts.Data = append(opts.Data, secret.Data...)
	// nfs(5): mount.nfs then says that it succeeded, leaves its process group, and mounts
	// whenever the server answers, on a path that by then is another volume's.
	if slices.Contains(opts.Data, "bg") {
		return share{}, faultf(KindInvalid, "mount flag bg: mounts some time later, when nobody waits for it; remove it")
	}
	if r.ReadOnly {
		opts.Attr |= mountapi.ReadOnly
	}
	return share{r.Source, r.FSType, opts, hidden, r.Exclusive}, nil
}
