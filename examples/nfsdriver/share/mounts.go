package share

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/csikit/csikit/breaker"
	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
)

// Mounts implements storage.Mounts: a volume of this driver says in its ID what to mount; a
// PersistentVolume created by an administrator, and an inline volume, say it in their
// attributes: server, share and optionally subDir.
type Mounts struct {
	Known  []Export // allowed for volumes; nil: any
	Inline []Export // allowed for inline volumes, with the options to reach them
	FSType string
}

// Mount implements storage.Mounts.
func (m *Mounts) Mount(_ context.Context, r storage.MountRequest) (storage.Mount, error) {
	ref, err := m.find(r)
	var options []string
	if err == nil {
		options, err = MountOptions(ref.Export, r.MountFlags, r.Context[storage.ContextMountOptions])
	}
	if err != nil {
		return storage.Mount{}, fmt.Errorf("%w: %w", csierr.Invalid, err)
	}
	mount := storage.Mount{Source: ref.Source(ref.SubDir), FSType: m.FSType, Options: options, Server: breaker.Server{Name: ref.Server}}
	if m.FSType == "nfs" {
		mount.Server = ref.Breaker()
	}
	return mount, nil
}

// Server implements storage.Mounts.
func (m *Mounts) Server(volumeID string) string {
	ref, err := ParseVolumeID(volumeID)
	if err != nil {
		return ""
	}
	return ref.Server
}

// Shows implements storage.Mounts.
func (m *Mounts) Shows(volumeID, source string) bool {
	ref, err := ParseVolumeID(volumeID)
	return err != nil || ref.IsAt(source)
}

// find returns what to mount, or an error if that is not allowed.
func (m *Mounts) find(r storage.MountRequest) (VolumeRef, error) {
	ref, err := refOf(r.VolumeID, r.Context, r.MountFlags)
	if err != nil {
		return ref, err
	}
	if !r.Inline {
		return ref, Allowed(m.Known, ref.Export)
	}
	for _, e := range m.Inline {
		if e.Compare(ref.Export) == 0 {
			ref.Export = e
			return ref, nil
		}
	}
	return ref, fmt.Errorf("the export %s is not one of -inline-exports, and inline volumes are only allowed on those", ref.Export)
}

func refOf(id string, attributes map[string]string, flags []string) (VolumeRef, error) {
	if err := knownKeys("volume_context", attributes, []string{ParamServer, ParamShare, ParamSubDir, storage.ContextMountOptions}); err != nil {
		return VolumeRef{}, err
	}
	ref, notOurs := ParseVolumeID(id)
	if attributes[ParamServer] == "" && notOurs == nil && ref.SubDir != "" {
		return ref, nil
	}
	if attributes[ParamServer] == "" {
		if notOurs == nil {
			notOurs = fmt.Errorf("the volume ID %q has no subDir", id)
		}
		return VolumeRef{}, fmt.Errorf("%w; the volume's attributes must have server, share and subDir", notOurs)
	}
	e, err := exportOf(attributes, flags)
	if err != nil {
		return VolumeRef{}, err
	}
	given := VolumeRef{Export: e, SubDir: attributes[ParamSubDir]}
	if given.SubDir != "" {
		if err := checkSubDir(given.SubDir); err != nil {
			return VolumeRef{}, err
		}
	}
	if notOurs == nil {
		if ref.Server != given.Server || ref.Share != given.Share || given.SubDir == "" || ref.Key() != given.Key() {
			return VolumeRef{}, fmt.Errorf("the attributes refer to %s, which is not the volume of the ID %q", given.Source(given.SubDir), id)
		}
		ref.SubDir = given.SubDir
		return ref, nil
	}
	return given, nil
}

// Allowed returns an error if there is a list of known exports and e is not in it. Mount
// options do not matter.
func Allowed(known []Export, e Export) error {
	if known != nil && !slices.ContainsFunc(known, func(k Export) bool { return k.Compare(e) == 0 }) {
		return fmt.Errorf("%w: the export %s is not one of -exports", csierr.Invalid, e)
	}
	return nil
}

// ParseExports parses "server:/share[,option...] ...", exports in the notation of fstab(5).
func ParseExports(s string) ([]Export, error) {
	var all []Export
	for word := range strings.FieldsSeq(s) {
		source, options, _ := strings.Cut(word, ",")
		server, share, ok := strings.Cut(source, ":/")
		if !ok {
			return nil, fmt.Errorf("%q: want server:/share", word)
		}
		e, err := exportOf(map[string]string{ParamServer: server, ParamShare: "/" + share}, []string{options})
		if err != nil {
			return nil, fmt.Errorf("%q: %w", word, err)
		}
		if len(e.OptionList()) != len(splitOptions([]string{options})) {
			return nil, fmt.Errorf("%q: only mount options needed to reach the server are allowed here: %s", word, strings.Join(essential, ", "))
		}
		if allowed := Allowed(all, e); allowed == nil && all != nil {
			return nil, fmt.Errorf("%s is listed twice", e)
		}
		all = append(all, e)
	}
	slices.SortFunc(all, Export.Compare)
	return all, nil
}
