package memory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"sync"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/examples/blockdriver/storage"
	"github.com/csikit/csikit/topology"
)

const (
	capacity     = 1 << 40          // bytes of all volumes
	unit, normal = 1 << 20, 1 << 30 // of a size, and the size if the request leaves it open
)

// Memory is the storage.Provider and the Backend. Its volumes have no parameters of its own.
type Memory struct {
	dir        string // of the files
	parameters storage.Parameters
	mu         sync.Mutex
	volumes    map[string]*volume // by ID
	nodes      map[string]*node
	used       int64 // bytes of all volumes
}

// node is how many volumes it takes (0: any number), and how many are attached to it.
type node struct{ most, has int64 }

type volume struct {
	storage.Volume
	attachment string // differs for each: a late stage must not use the next one
}

// with calls do for the volume, and returns the volume as it is afterwards.
func (m *Memory) with(op, id string, do func(*volume) error) (storage.Volume, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.volumes[id]
	if v == nil {
		return storage.Volume{}, csierr.Errorf(op, id, "%w", csierr.NotFound)
	}
	if err := do(v); err != nil {
		return v.Volume, csierr.Errorf(op, id, "%w", err)
	}
	return v.Volume, nil
}

func (m *Memory) CreateVolume(_ context.Context, s storage.VolumeSpec) (storage.Volume, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.volumes {
		if v.Name == s.Name {
			return v.Volume, v.Matches(s)
		}
	}
	v := &volume{Volume: storage.Volume{ID: "vol-" + rand.Text(), Name: s.Name, AccessType: s.AccessType, Parameters: s.Parameters, Prezeroed: true}}
	size, err := s.Size(normal, unit, 0)
	if err == nil {
		err = m.parameters.Check(s.Parameters)
	}
	if err == nil {
		err = m.grow(v, size)
	}
	if err != nil {
		return storage.Volume{}, csierr.Errorf("create volume", s.Name, "%w", err)
	}
	m.volumes[v.ID] = v
	return v.Volume, nil
}

// grow creates the file as well.
func (m *Memory) grow(v *volume, size int64) error {
	if size > capacity {
		return fmt.Errorf("%w: no volume can have %d bytes", csierr.OutOfRange, size)
	}
	if size-v.CapacityBytes > capacity-m.used {
		return fmt.Errorf("%w for %d bytes", csierr.NoSpace, size)
	}
	f, err := os.OpenFile(m.file(v.ID), os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil {
		err = errors.Join(f.Truncate(size), f.Close())
	}
	if err == nil {
		m.used, v.CapacityBytes = m.used+size-v.CapacityBytes, size
	}
	return err
}

func (m *Memory) DeleteVolume(_ context.Context, id string) error {
	_, err := m.with("delete volume", id, func(v *volume) error {
		if v.Attachment != nil {
			return fmt.Errorf("%w by node %q: detach it first", storage.ErrInUse, v.Attachment.NodeID)
		}
		delete(m.volumes, id)
		m.used -= v.CapacityBytes
		return os.Remove(m.file(id))
	})
	return noneIsDone(err)
}

// noneIsDone: for a delete or detach, what does not exist is no error.
func noneIsDone(err error) error {
	if errors.Is(err, csierr.NotFound) {
		return nil
	}
	return err
}

func (m *Memory) ExpandVolume(_ context.Context, id string, r storage.CapacityRange) (storage.Volume, error) {
	return m.with("expand volume", id, func(v *volume) error {
		size, err := v.GrownSize(r, unit)
		if err != nil {
			return err
		}
		return m.grow(v, size)
	})
}

func (m *Memory) GetVolume(_ context.Context, id string) (storage.Volume, error) {
	return m.with("get volume", id, func(*volume) error { return nil })
}

var idPattern = regexp.MustCompile(`^vol-[A-Z2-7]{26}$`)

// ListVolumes has as token the last ID of the page before.
func (m *Memory) ListVolumes(_ context.Context, after string, limit int) (page []storage.Volume, next string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if after != "" && !idPattern.MatchString(after) {
		return nil, "", storage.ErrBadToken
	}
	for _, id := range slices.Sorted(maps.Keys(m.volumes)) {
		if limit > 0 && len(page) == limit {
			return page, page[limit-1].ID, nil
		}
		if id > after {
			page = append(page, m.volumes[id].Volume)
		}
	}
	return page, "", nil
}

func (m *Memory) AttachVolume(_ context.Context, id string, a storage.Attachment) (publishContext map[string]string, err error) {
	_, err = m.with("attach volume", id, func(v *volume) error {
		n := m.nodes[a.NodeID]
		switch has := v.Attachment; {
		case n == nil:
			return fmt.Errorf("node %q %w", a.NodeID, csierr.NotFound)
		case has != nil && has.NodeID != a.NodeID:
			return fmt.Errorf("%w by node %q: detach it there first", storage.ErrInUse, has.NodeID)
		case has == nil && n.most > 0 && n.has >= n.most:
			return fmt.Errorf("%w: node %q takes %d volumes", csierr.NoSpace, a.NodeID, n.most)
		case has == nil:
			v.Attachment, v.attachment = &a, rand.Text()
			n.has++
		}
		publishContext = map[string]string{"attachment": v.attachment}
		return v.Attachment.Matches(a)
	})
	return publishContext, err
}

func (m *Memory) DetachVolume(_ context.Context, id, nodeID string) error {
	_, err := m.with("detach volume", id, func(v *volume) error {
		if a := v.Attachment; a != nil && (nodeID == "" || nodeID == a.NodeID) {
			m.nodes[a.NodeID].has--
			v.Attachment = nil
		}
		return nil
	})
	return noneIsDone(err)
}

func (m *Memory) Places(_ context.Context, parameters map[string]string) ([]topology.Candidate, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.parameters.Check(parameters); err != nil {
		return nil, err
	}
	return []topology.Candidate{{Name: "memory", Free: capacity - m.used}}, nil
}
