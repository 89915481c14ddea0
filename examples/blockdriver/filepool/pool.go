package filepool

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/topology"
)

// pool is a directory that holds volumes as sparse image files:
//
//	.csikit-pool            the marker; the controller holds a lock on it
//	volumes/, snapshots/, groups/  see store
//	groups/<id>.making      names the volumes of a group snapshot in progress
//	groups/<id>.frozen      names volumes that are frozen for a group snapshot
//	nodes/<node>.json       written by the node plugin when it starts
//	nodes/<node>.lock       locked by it while it runs
//
// A pool has only what the node plugin needs and takes no lock;
// fileBackend adds the controller's half. Its methods are safe for concurrent
// use, by several processes too, but only one process may register a given
// node.
type pool struct {
	dir       string            // absolute
	name      string            // as the settings call it
	segments  topology.Segments // from where its volumes are accessible
	root      *os.Root
	volumes   *os.Root
	snapshots *os.Root
	groups    *os.Root
	nodes     *os.Root

	reflinkMu    sync.Mutex
	reflinkKnown bool
	reflink      bool // files can share blocks; found out by the controller, see reflinks

	nodeLock *nodeLock // of a node plugin

	// Set by tests. step runs before each step that changes the directory, and
	// fails it; space stands in for statfs.
	step  func(name string) error
	space func() (total, free int64, err error)
}

const (
	markerName    = ".csikit-pool"
	poolFormat    = "csikit-pool"
	formatVersion = 1

	extMetadata = ".json"
	extImage    = ".img"
	extDeleting = ".deleting"
	extTemp     = ".tmp"
)

type marker struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
}

type nodeRecord struct {
	Version    int               `json:"version"`
	NodeID     string            `json:"node_id"`
	MaxVolumes int64             `json:"max_volumes,omitempty"` // 0: no limit
	Topology   topology.Segments `json:"topology,omitempty"`
}

// openPool opens the pool in dir. A directory without the marker is refused, be it
// missing, empty or of another program: that is what a pool looks like whose file system
// is not mounted, or a wrong path. A new pool in its place would know none of the volumes, and
// report to the CO that they are gone.
func openPool(dir string) (*pool, error) { return openPoolIn(dir, false) }

// initPool creates a pool in an empty directory, or of a missing one in a directory that
// is there. One that is a pool stays as it is.
func initPool(dir string) (*pool, error) { return openPoolIn(dir, true) }

func openPoolIn(dir string, create bool) (_ *pool, err error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, csierr.Errorf("open pool", dir, "%w", err)
	}
	p := &pool{dir: abs}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if create {
		if err := os.Mkdir(abs, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, csierr.Errorf("open pool", abs, "%w", err)
		}
	}
	p.root, err = os.OpenRoot(abs)
	if errors.Is(err, fs.ErrNotExist) && !create {
		err = fmt.Errorf("the directory is missing: %s", p.mountOrInit())
	}
	if err != nil {
		return nil, csierr.Errorf("open pool", abs, "%w", err)
	}
	if err := p.checkMarker(create); err != nil {
		return nil, csierr.Errorf("open pool", abs, "%w", err)
	}
	if err := p.checkDirs(); err != nil {
		return nil, csierr.Errorf("open pool", abs, "%w", err)
	}
	if p.volumes, err = p.openDir("volumes"); err != nil {
		return nil, csierr.Errorf("open pool", abs, "%w", err)
	}
	if p.snapshots, err = p.openDir("snapshots"); err != nil {
		return nil, csierr.Errorf("open pool", abs, "%w", err)
	}
	if p.groups, err = p.openDir("groups"); err != nil {
		return nil, csierr.Errorf("open pool", abs, "%w", err)
	}
	if p.nodes, err = p.openDir("nodes"); err != nil {
		return nil, csierr.Errorf("open pool", abs, "%w", err)
	}
	if err := syncDir(p.root); err != nil && !unwritable(err) {
		return nil, csierr.Errorf("open pool", abs, "%w", err)
	}
	return p, nil
}

// checkDirs detects a missing directory. To create it again would report to the CO that
// all in it was deleted. A start that was killed leaves none of those that are created
// later, and an earlier version created volumes and nodes first.
func (p *pool) checkDirs() error {
	for _, d := range []struct {
		name  string
		later []string
	}{
		{"volumes", []string{"snapshots", "groups", "nodes"}},
		{"snapshots", []string{"groups"}},
	} {
		for _, other := range d.later {
			// In this order: another process may be making them.
			if _, err := p.root.Lstat(other); err != nil {
				continue
			}
			if _, err := p.root.Lstat(d.name); errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%w: the directory %s is missing, and %s exists; restore it, or create an empty one if nothing was in it", errDamaged, d.name, other)
			}
		}
	}
	return nil
}

func (p *pool) openDir(name string) (*os.Root, error) {
	err := p.root.Mkdir(name, 0o700)
	if err == nil {
		err = inheritOwner(p.root, name)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return p.root.OpenRoot(name)
}

// Close releases the pool's descriptors. Call it after the last operation has
// returned.
func (p *pool) Close() error {
	var errs []error
	if p.nodeLock != nil {
		errs = append(errs, p.nodeLock.Close())
	}
	for _, r := range []*os.Root{p.volumes, p.snapshots, p.groups, p.nodes, p.root} {
		if r != nil {
			errs = append(errs, r.Close())
		}
	}
	return errors.Join(errs...)
}

func (p *pool) checkMarker(create bool) error {
	err := p.readMarker()
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	stranger, err := p.stranger()
	if err != nil {
		return err
	}
	if stranger == "" && create {
		return p.createMarker()
	}
	// Another process may have created the marker, and more, since the check above.
	if err := p.readMarker(); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if stranger == "" {
		return fmt.Errorf("the directory is empty: %s", p.mountOrInit())
	}
	return fmt.Errorf("the directory has no %s and is not empty (it holds %q); use an empty directory, or mount the pool's file system there", markerName, stranger)
}

func (p *pool) mountOrInit() string {
	return "mount the pool's file system; or, if this is to be a new pool, run: blockdriver init -pool " + p.dir
}

func (p *pool) readMarker() error {
	data, err := p.root.ReadFile(markerName)
	if err != nil {
		return err
	}
	var m marker
	if err := json.Unmarshal(data, &m); err != nil || m.Format != poolFormat {
		return fmt.Errorf("%w: %s is not a pool marker; restore it as {\"format\":%q,\"version\":%d} if this is a pool", errDamaged, markerName, poolFormat, formatVersion)
	}
	if m.Version != formatVersion {
		return fmt.Errorf("the pool has format version %d, this driver knows %d; use the driver that created it", m.Version, formatVersion)
	}
	return nil
}

// stranger names an entry that does not belong into a fresh directory, if there
// is one.
func (p *pool) stranger() (string, error) {
	names, err := readNames(p.root)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		// lost+found comes with a fresh ext4; our own temporaries are what a
		// kill at this point leaves.
		if name != "lost+found" && !strings.HasPrefix(name, markerName+".") {
			return name, nil
		}
	}
	return "", nil
}

// createMarker links a complete file into place, which unlike a rename never
// replaces a marker that another process created and locked concurrently.
func (p *pool) createMarker() error {
	data, err := json.Marshal(marker{Format: poolFormat, Version: formatVersion})
	if err != nil {
		return err
	}
	tmp := markerName + "." + rand.Text() + extTemp
	defer p.root.Remove(tmp)
	if err := writeSynced(p.root, tmp, append(data, '\n')); err != nil {
		return err
	}
	if err := p.root.Link(tmp, markerName); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return p.readMarker()
}

// nodeIDPattern: node IDs arrive in requests too, and become file names.
var nodeIDPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$`)

// RegisterNode records that nodeID exists, so that the controller can distinguish it
// from an unknown one, how many volumes it takes (0: no limit), and where it is.
// Call it whenever the node plugin starts.
func (p *pool) RegisterNode(nodeID string, maxVolumes int64, at topology.Segments) error {
	if !nodeIDPattern.MatchString(nodeID) {
		return csierr.Errorf("register node", nodeID, "a node ID has 1 to 200 letters, digits, '.', '_' and '-', and begins with a letter or digit; choose another")
	}
	data, err := encode(nodeRecord{Version: formatVersion, NodeID: nodeID, MaxVolumes: maxVolumes, Topology: at})
	if err != nil {
		return csierr.Errorf("register node", nodeID, "%w", err)
	}
	if has, err := p.nodes.ReadFile(nodeID + extMetadata); err == nil && bytes.Equal(has, data) {
		// The process that wrote it may have been killed before the fsync.
		if err = p.sync(p.nodes); err != nil && !unwritable(err) {
			return csierr.Errorf("register node", nodeID, "%w", err)
		}
		return nil
	}
	if _, err := p.replaceWhenFull(p.nodes, nodeID+extMetadata, data); err != nil {
		return csierr.Errorf("register node", nodeID, "%w", err)
	}
	return nil
}

// readNode returns csierr.NotFound for a node that was never registered.
func (p *pool) readNode(nodeID string) (r nodeRecord, err error) {
	if !nodeIDPattern.MatchString(nodeID) {
		return r, csierr.NotFound
	}
	data, err := p.nodes.ReadFile(nodeID + extMetadata)
	if errors.Is(err, fs.ErrNotExist) {
		return r, csierr.NotFound
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err == nil && (r.Version != formatVersion || r.NodeID != nodeID) {
		err = fmt.Errorf("version %d, node %q", r.Version, r.NodeID)
	}
	if err != nil { // not errDamaged: no data is lost
		err = fmt.Errorf("%s cannot be parsed: %w; restart the node plugin there, which writes it again", p.file("nodes", nodeID+extMetadata), err)
	}
	return r, err
}

// ReadVolume reads the volume from the disk: what the node plugin uses, which
// has no index. During an expansion, the image may already be larger than
// CapacityBytes, never smaller.
func (p *pool) ReadVolume(id string) (volume, error) {
	if !volumeIDPattern.MatchString(id) {
		return volume{}, csierr.Errorf("read volume", id, "%w", csierr.NotFound)
	}
	data, err := p.volumes.ReadFile(id + extMetadata)
	if errors.Is(err, fs.ErrNotExist) {
		return volume{}, csierr.Errorf("read volume", id, "%w", csierr.NotFound)
	}
	if err != nil {
		return volume{}, csierr.Errorf("read volume", id, "%w", err)
	}
	var m volumeMetadata
	if err := json.Unmarshal(data, &m); err != nil {
		return volume{}, csierr.Errorf("read volume", id, "metadata %w: %w; restore %s", errDamaged, err, p.file("volumes", id+extMetadata))
	}
	if m.Version != formatVersion {
		return volume{}, csierr.Errorf("read volume", id, "metadata %w: %s has version %d, this driver knows %d; use the driver that wrote it", errDamaged, p.file("volumes", id+extMetadata), m.Version, formatVersion)
	}
	if m.ID != id || m.CapacityBytes <= 0 || storage.MinimumSizes[m.AccessType] == 0 {
		return volume{}, csierr.Errorf("read volume", id, "metadata %w: it describes volume %q with %d bytes and access type %q; restore %s",
			errDamaged, m.ID, m.CapacityBytes, m.AccessType, p.file("volumes", id+extMetadata))
	}
	m.volume.Segments = p.segments
	return m.volume, nil
}

// image returns the absolute path of the volume's image.
func (p *pool) image(id string) string { return p.file("volumes", id+extImage) }

// errNoNode: the node is unknown to the pool.
var errNoNode = csierr.NotFound.New("not found")

// errDamaged: what the pool contains is not what the driver has written.
var errDamaged = csierr.DataLoss.New("damaged")

// What can be wrong with an image.
var (
	errImageMissing   = fmt.Errorf("image %w", errDamaged)
	errImageForeign   = fmt.Errorf("image %w", errDamaged)
	errImageTruncated = fmt.Errorf("image %w", errDamaged)
)

// checkImage finds an image that is missing or has lost its end, before a file
// system is mounted from it.
func (p *pool) checkImage(dir *os.Root, dirName, id string, least int64) (size int64, err error) {
	file := p.file(dirName, id+extImage)
	info, err := dir.Lstat(id + extImage)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, fmt.Errorf("%w: %s is missing; restore it", errImageMissing, file)
	case err != nil:
		return 0, err
	case !info.Mode().IsRegular():
		return 0, fmt.Errorf("%w: %s is not a regular file; restore it", errImageForeign, file)
	case info.Size() < least:
		return 0, fmt.Errorf("%w: %s has %d of %d bytes; restore it", errImageTruncated, file, info.Size(), least)
	}
	return info.Size(), nil
}

// CheckImage finds an image that must not be attached, before it is: see checkImage. The
// path has to lead to the image of this pool, which was opened once: since then another
// file system may have been mounted there, or the pool's own unmounted.
func (p *pool) CheckImage(v volume) error {
	const op = "check image of volume"
	if err := p.nodeLock.check(); err != nil {
		return csierr.Errorf(op, v.ID, "%w", err)
	}
	if _, err := p.checkImage(p.volumes, "volumes", v.ID, v.CapacityBytes); err != nil {
		return csierr.Errorf(op, v.ID, "%w", err)
	}
	ours, err := p.volumes.Lstat(v.ID + extImage)
	if err != nil {
		return csierr.Errorf(op, v.ID, "%w", err)
	}
	file := p.file("volumes", v.ID+extImage)
	there, err := os.Lstat(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return csierr.Errorf(op, v.ID, "%w", err)
	}
	if err != nil || !os.SameFile(ours, there) {
		return csierr.Errorf(op, v.ID, "%w: %s is not in the pool that was opened; mount the pool's file system there again, and restart the driver", storage.ErrNotAccessible, file)
	}
	return nil
}

// publishContext names for the node plugin the image to attach, relative to the pool, as
// the pool may be mounted elsewhere there, and which attachment this is: one that has
// ended lets no node stage the volume, not even the node that has it again. It is empty
// for a volume that an earlier version attached.
func publishContext(v volume) map[string]string {
	c := map[string]string{contextImage: path.Join("volumes", v.ID+extImage)}
	if v.Attachment != nil && v.Attachment.Generation != 0 {
		c[contextAttachment] = strconv.FormatInt(v.Attachment.Generation, 10)
	}
	return c
}

const (
	contextImage      = "image"
	contextAttachment = "attachment"
)

// file is the path for an error text.
func (p *pool) file(dir, name string) string { return filepath.Join(p.dir, dir, name) }

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.Bytes(), err
}
