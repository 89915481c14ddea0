package storage

import (
	"context"

	"github.com/csikit/csikit/breaker"
)

// Mounts is the storage as a node uses it: what to mount for a volume. It runs on nodes
// without a controller. Every method is safe for concurrent use, and needs no connection to
// the storage, which may not respond.
type Mounts interface {
	// Mount returns what to mount. csierr.Invalid is for a volume_context or mount flags that
	// are not possible or not allowed.
	Mount(ctx context.Context, r MountRequest) (Mount, error)
	// Server returns the name of the volume's server, or "" if that does not follow from the ID.
	Server(volumeID string) string
	// Shows reports whether source, of the table of mounts, is that of the volume. It is
	// true if that does not follow from the ID.
	Shows(volumeID, source string) bool
}

// MountRequest is what a node knows of a volume.
type MountRequest struct {
	VolumeID   string
	Context    map[string]string // volume_context, without the keys that Kubernetes adds
	MountFlags []string
	// Inline: the author of a pod wrote Context, and may name any server there.
	Inline  bool
	Secrets map[string]string
}

// Mount is what the helper mount.FSType gets.
type Mount struct {
	Source  string // such as "server:/path"
	FSType  string
	Options []string
	// Sensitive are further options, which appear in no log and in no error.
	Sensitive []string

	// Server has the circuit breaker of the mount.
	Server breaker.Server
}
