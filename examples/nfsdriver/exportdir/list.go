package exportdir

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/nfsdriver/share"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
)

// A list iterates over the known exports in order, and in each over the records in the
// order of their names. Its token is the last ID of a page, and stays valid when volumes
// are created or deleted, including that one.

// lister is the backend if the exports are known. Without that there are no lists.
type lister struct{ *backend }

func (b *lister) ListVolumes(ctx context.Context, after string, limit int) ([]storage.Volume, string, error) {
	var from place
	if after != "" {
		ref, err := share.ParseVolumeID(after)
		if err != nil {
			return nil, "", fail("list volumes after", after, "%w; start again without a token", storage.ErrBadToken)
		}
		from = place{ref.Export, ref.Key()}
	}
	return list(ctx, b.backend, "list volumes", dirVolumes, from, limit,
		func(s *store, name string) (storage.Volume, error) {
			r, err := s.readVolumeFile(name)
			return r.public(), err
		},
		func(v storage.Volume) string { return v.ID })
}

func (b *lister) ListSnapshots(ctx context.Context, after string, limit int) ([]storage.Snapshot, string, error) {
	var from place
	if after != "" {
		ref, err := share.ParseSnapshotID(after)
		if err != nil {
			return nil, "", fail("list snapshots after", after, "%w; start again without a token", storage.ErrBadToken)
		}
		from = place{ref.Export, ref.Key}
	}
	return list(ctx, b.backend, "list snapshots", dirSnapshots, from, limit,
		func(s *store, name string) (storage.Snapshot, error) {
			r, err := s.readSnapshot(name)
			return r.public(), err
		},
		func(v storage.Snapshot) string { return v.ID })
}

// place is a position in a list.
type place struct {
	share.Export
	key string
}

func list[T any](ctx context.Context, b *backend, op, dir string, after place, limit int,
	read func(s *store, name string) (T, error), id func(T) string) (page []T, next string, err error) {
	for _, e := range b.known {
		if e.Compare(after.Export) < 0 {
			continue
		}
		from := ""
		if e.Compare(after.Export) == 0 {
			from = after.key
		}
		more := 0 // one more than fits the page shows whether there is a next page
		if limit > 0 {
			more = limit + 1 - len(page)
		}
		part, err := queryStore(ctx, b, e, fmt.Sprintf("%s %s, %d after %q", op, e, more, from), func(s *store) ([]T, error) {
			return listExport(s, dir, from, more, read)
		})
		if err != nil {
			return nil, "", fail(op, e.String(), "%w", err)
		}
		page = append(page, part...)
		if limit > 0 && len(page) > limit {
			page = page[:limit]
			return page, id(page[limit-1]), nil
		}
	}
	return page, "", nil
}

// listExport logs and omits corrupt records, because one of them must not hide all the
// others.
func listExport[T any](s *store, dir, after string, limit int, read func(*store, string) (T, error)) ([]T, error) {
	if err := s.open(); errors.Is(err, csierr.NotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	names, err := readNames(s.own, dir)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var part []T
	for _, name := range names {
		key, ok := strings.CutSuffix(name, extRecord)
		if !ok || key <= after {
			continue
		}
		v, err := read(s, path.Join(dir, name))
		if errors.Is(err, errDamaged) {
			s.log.Error("omit corrupt record from list", "error", err)
			continue
		}
		if errors.Is(err, csierr.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if part = append(part, v); limit > 0 && len(part) == limit {
			break
		}
	}
	return part, nil
}
