package filepool

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/csikit/csikit/blocking"
	"github.com/csikit/csikit/csierr"
)

// finding is something that is wrong in a pool.
type finding struct {
	Pool, File      string // the file is relative to the pool
	Problem, Remedy string
	Repairable      bool // without a loss of anything that was acknowledged
	repaired        bool
}

// checkPools looks for what is wrong; repair does about it what the start of a
// controller does, and removes copies that were begun and not finished. That needs the
// locks of the pools; to look does not, but what a controller is just doing then looks
// like what a kill has left.
func checkPools(configs []poolConfig, repair bool) ([]finding, error) {
	before, err := scanPools(configs)
	if err != nil || !repair {
		return before, err
	}
	if err := repairPools(configs); err != nil {
		return before, err
	}
	after, err := scanPools(configs)
	for i := range before {
		before[i].repaired = !slices.ContainsFunc(after, func(f finding) bool {
			return f.Pool == before[i].Pool && f.File == before[i].File && f.Problem == before[i].Problem
		})
	}
	for _, f := range after {
		if !slices.Contains(before, f) && !slices.ContainsFunc(before, func(b finding) bool { return b.Pool == f.Pool && b.File == f.File && b.Problem == f.Problem }) {
			before = append(before, f)
		}
	}
	return before, err
}

func repairPools(configs []poolConfig) error {
	m := &filePools{
		poolSet: &poolSet[*fileBackend]{configs: configs, work: new(blocking.Group), log: slog.New(slog.DiscardHandler)},
		locks:   new(locks), attached: new(tally),
	}
	m.open, m.opened = m.openBackendOf, map[string]*fileBackend{}
	var err error
	for _, c := range configs {
		if err = m.openOne(c); err != nil {
			err = fmt.Errorf("-repair needs exclusive use of the pool %s: %w", c.Name, err)
			break
		}
	}
	if err == nil {
		for _, b := range m.here() {
			err = errors.Join(err, b.vols.dropCopies(), b.snaps.dropCopies())
		}
		m.dropOrphans()
	}
	return errors.Join(err, m.closeAll())
}

// dropCopies removes what was begun and not finished: no object refers to it.
func (s *store[T]) dropCopies() error {
	s.mu.Lock()
	var ids []string
	for _, id := range s.begun {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	var errs []error
	for _, id := range ids {
		errs = append(errs, s.dropCopy(id))
	}
	return errors.Join(errs...)
}

func scanPools(configs []poolConfig) ([]finding, error) {
	var all []finding
	volumes, groups, unfinished, members := map[string]string{}, map[string]bool{}, map[string]bool{}, []finding{}
	for _, c := range configs {
		p, err := openPool(c.Dir)
		if err != nil {
			return all, err
		}
		p.name = c.Name
		s := &scan{pool: p}
		err = s.run()
		all = append(all, s.findings...)
		for _, id := range s.volumes {
			if other, twice := volumes[keyOf(id)]; twice {
				all = append(all, finding{Pool: p.name, File: "volumes/" + id + extMetadata, Problem: "a volume of this name is also in the pool " + other,
					Remedy: "find out which is the right one, and move the other away"})
			}
			volumes[keyOf(id)] = p.name
		}
		for _, g := range s.groups {
			groups[g] = true
		}
		for _, g := range s.unfinished {
			unfinished[g] = true
		}
		for id, g := range s.members {
			members = append(members, finding{Pool: p.name, File: "snapshots/" + id + extMetadata, Problem: g,
				Remedy: "name all pools; if its record is lost, move the snapshot away"})
		}
		if err = errors.Join(err, p.Close()); err != nil {
			return all, err
		}
	}
	for _, f := range members {
		if group := f.Problem; !groups[group] {
			f.Problem = "a part of the group snapshot " + group + ", of which no pool has the record"
			if unfinished[group] {
				f.Problem, f.Remedy, f.Repairable = "a part of the group snapshot "+group+", which was never finished", "remove the snapshot", true
			}
			all = append(all, f)
		}
	}
	return all, nil
}

// scan checks one pool and changes nothing.
type scan struct {
	*pool
	findings []finding
	volumes  []string
	groups   []string
	members  map[string]string // snapshots of groups
	// groups that were begun
	unfinished []string
}

func (s *scan) found(dir, name, problem, remedy string, repairable bool) {
	s.findings = append(s.findings, finding{Pool: s.name, File: dir + "/" + name, Problem: problem, Remedy: remedy, Repairable: repairable})
}

func (s *scan) run() error {
	s.members = map[string]string{}
	for _, d := range []struct {
		name string
		root *os.Root
		ids  interface{ MatchString(string) bool }
		read func(id string) (size int64, err error)
	}{
		{"volumes", s.pool.volumes, volumeIDPattern, s.volume},
		{"snapshots", s.snapshots, snapshotIDPattern, s.snapshot},
		{"groups", s.pool.groups, groupIDPattern, s.group},
	} {
		names, err := readNames(d.root)
		if err != nil {
			return err
		}
		slices.Sort(names)
		for _, name := range names {
			id := strings.TrimSuffix(name, extension(name))
			if extension(name) == extTemp {
				id = strings.TrimSuffix(id, extension(id))
			}
			if !d.ids.MatchString(id) {
				s.found(d.name, name, "not a file of the driver's", "move it away", false)
				continue
			}
			has := func(ext string) bool {
				_, there := slices.BinarySearch(names, id+ext)
				return there
			}
			s.file(d.name, d.root, name, id, has, d.read)
		}
	}
	return s.nodeRecords()
}

func (s *scan) nodeRecords() error {
	names, err := readNames(s.pool.nodes)
	slices.Sort(names)
	for _, name := range names {
		node, isRecord := strings.CutSuffix(name, extMetadata)
		if !isRecord {
			continue
		}
		if _, err := s.readNode(node); err != nil {
			s.found("nodes", name, "the record of a node cannot be parsed", "restart the node plugin there, which writes it again", false)
		}
	}
	return err
}

// file checks one file against those beside it.
func (s *scan) file(dir string, root *os.Root, name, id string, has func(ext string) bool, read func(string) (int64, error)) {
	switch extension(name) {
	case extTemp:
		s.found(dir, name, "an interrupted write", "remove it", true)
	case extMetadata:
		size, err := read(id)
		if err != nil {
			s.found(dir, name, reason(err), "restore the file; until then the driver does not touch the image", false)
			return
		}
		if dir != "groups" {
			s.image(dir, root, id, size)
		}
	case extDeleting:
		if has(extMetadata) {
			s.found(dir, name, "the mark of a deletion that has ended", "remove it", true)
		} else {
			s.found(dir, name, "an interrupted deletion", "finish it", true)
		}
	case extCopying:
		if has(extMetadata) {
			s.found(dir, name, "the mark of a copy that has ended", "remove it", true)
		} else {
			s.found(dir, name, "an interrupted copy", "remove it, or repeat the request, which resumes it", true)
		}
	case extMaking:
		if has(extMetadata) {
			s.found(dir, name, "the mark of a group snapshot that has ended", "remove it", true)
		} else if err := s.making(id); err != nil {
			s.found(dir, name, reason(err), "remove it with the driver stopped, then look again for the snapshots of the group", false)
		} else {
			s.unfinished = append(s.unfinished, id)
			s.found(dir, name, "an interrupted group snapshot", "remove it and its snapshots", true)
		}
	case extFrozen:
		s.found(dir, name, "volumes were left frozen", "start the driver on the node that the file names, and it thaws them", false)
	case extImage:
		if !has(extMetadata) && !has(extDeleting) && !has(extCopying) {
			s.strayImage(dir, root, name)
		}
	default:
		s.found(dir, name, "not a file of the driver's", "move it away", false)
	}
}

func (s *scan) image(dir string, root *os.Root, id string, size int64) {
	switch has, err := s.checkImage(root, dir, id, size); {
	case err != nil:
		s.found(dir, id+extImage, reason(err), "restore the image from a backup, or delete the object", false)
	case has > size && dir == "volumes":
		s.found(dir, id+extImage, fmt.Sprintf("an interrupted expansion from %d to %d bytes", size, has), "finish it", true)
	}
}

func (s *scan) strayImage(dir string, root *os.Root, name string) {
	f, err := root.Open(name)
	if err != nil {
		s.found(dir, name, reason(err), "see what is wrong with the disk", false)
		return
	}
	defer f.Close()
	if data, err := holdsData(f); err != nil || data {
		s.found(dir, name, "the image holds data, and its metadata is missing", "restore the metadata, or move the image away", false)
	} else {
		s.found(dir, name, "an interrupted creation", "remove the empty image", true)
	}
}

func (s *scan) volume(id string) (int64, error) {
	s.volumes = append(s.volumes, id)
	v, err := s.ReadVolume(id)
	if err == nil && v.Attachment != nil {
		if _, err := s.readNode(v.Attachment.NodeID); errors.Is(err, csierr.NotFound) {
			s.found("volumes", id+extMetadata, fmt.Sprintf("attached to node %q, which is unknown", v.Attachment.NodeID), "detach it: ControllerUnpublishVolume", false)
		}
	}
	return v.CapacityBytes, err
}

func (s *scan) making(id string) error {
	data, err := s.pool.groups.ReadFile(id + extMaking)
	if err == nil {
		_, err = readMakingMark(data)
	}
	return err
}

func (s *scan) snapshot(id string) (int64, error) {
	snap, err := s.readSnapshot(id)
	if snap.GroupID != "" {
		s.members[id] = snap.GroupID
	}
	return snap.SizeBytes, err
}

func (s *scan) group(id string) (int64, error) {
	s.groups = append(s.groups, id)
	_, err := s.readGroup(id)
	return 0, err
}

// reason leaves out what the table says already.
func reason(err error) string {
	var b *csierr.Error
	var p *fs.PathError
	switch {
	case errors.As(err, &b):
		err = b.Err
	case errors.As(err, &p):
		err = p.Err
	}
	text, _, _ := strings.Cut(err.Error(), "; restore")
	return text
}
