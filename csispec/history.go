package csispec

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A History records the responses of a plugin and finds responses that contradict
// earlier ones. The zero value is ready, and safe for concurrent use.
//
// It is meant for tests: it uses memory for every volume, snapshot and group
// that it has observed, until that is deleted.
type History struct {
	mu sync.Mutex
	// created holds the ID that a create call returned for a name, contexts the
	// volume_context of a volume, published the publish_context by volume and
	// node.
	created   map[object]string
	contexts  map[string]map[string]string
	published map[string]map[string]map[string]string

	version      string
	capabilities []string
	prefix       *string // of topology keys
}

// An object is identified by the name in a create call.
type object struct{ kind, name string }

// Observe records a call that succeeded, by its request and response, and returns
// a *[Violations] error with the rules "constant" and "topology-prefix" for
//
//   - a volume_context other than before, in any response;
//   - a publish_context other than before, until the volume is unpublished from
//     the node;
//   - another ID for the same name, until the object is deleted;
//   - other plugin capabilities than before from the same vendor_version;
//   - a prefix of topology keys other than the first one, in any response.
//
// Calls for one object have to be observed in the order in which they
// took effect: do not run a delete concurrently with a create of the same name.
func (h *History) Observe(req, resp proto.Message) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &remarks{}
	h.forget(req)
	eachMessage(resp.ProtoReflect(), "", func(path string, m proto.Message) {
		switch m := m.(type) {
		case *csi.Volume:
			before, known := h.contexts[m.GetVolumeId()]
			r.sameMap(path+"volume_context", known, before, m.GetVolumeContext(), "volume "+quote(m.GetVolumeId()))
			put(&h.contexts, m.GetVolumeId(), maps.Clone(m.GetVolumeContext()))
		case *csi.Topology:
			h.topology(r, path, m)
		}
	})
	switch resp := resp.(type) {
	case *csi.CreateVolumeResponse:
		h.create(r, object{"volume", name(req)}, "volume.volume_id", resp.GetVolume().GetVolumeId())
	case *csi.CreateSnapshotResponse:
		h.create(r, object{"snapshot", name(req)}, "snapshot.snapshot_id", resp.GetSnapshot().GetSnapshotId())
	case *csi.CreateVolumeGroupSnapshotResponse:
		h.create(r, object{"group", name(req)}, "group_snapshot.group_snapshot_id", resp.GetGroupSnapshot().GetGroupSnapshotId())
	case *csi.ControllerPublishVolumeResponse:
		if req, ok := req.(*csi.ControllerPublishVolumeRequest); ok {
			h.publish(r, req, resp)
		}
	case *csi.GetPluginInfoResponse:
		if resp.GetVendorVersion() != h.version {
			h.version, h.capabilities = resp.GetVendorVersion(), nil
		}
	case *csi.GetPluginCapabilitiesResponse:
		h.plugin(r, resp)
	}
	if len(r.all) == 0 {
		return nil
	}
	return &Violations{Subject: string(resp.ProtoReflect().Descriptor().Name()), All: r.all}
}

// forget removes the records of objects that a request deleted or unpublished.
func (h *History) forget(req proto.Message) {
	drop := func(kind, id string) {
		maps.DeleteFunc(h.created, func(o object, known string) bool { return o.kind == kind && known == id })
	}
	switch req := req.(type) {
	case *csi.DeleteVolumeRequest:
		drop("volume", req.GetVolumeId())
		delete(h.contexts, req.GetVolumeId())
		delete(h.published, req.GetVolumeId())
	case *csi.DeleteSnapshotRequest:
		drop("snapshot", req.GetSnapshotId())
	case *csi.DeleteVolumeGroupSnapshotRequest:
		drop("group", req.GetGroupSnapshotId())
	case *csi.ControllerUnpublishVolumeRequest:
		if req.GetNodeId() == "" { // from every node
			delete(h.published, req.GetVolumeId())
		} else {
			delete(h.published[req.GetVolumeId()], req.GetNodeId())
		}
	}
}

func (h *History) create(r *remarks, o object, field, id string) {
	if before, known := h.created[o]; known && before != id {
		r.add(field, "constant", "is %s, but %s %s was created as %s before", quote(id), o.kind, quote(o.name), quote(before))
	}
	put(&h.created, o, id)
}

func (h *History) publish(r *remarks, req *csi.ControllerPublishVolumeRequest, resp *csi.ControllerPublishVolumeResponse) {
	nodes := h.published[req.GetVolumeId()]
	before, known := nodes[req.GetNodeId()]
	r.sameMap("publish_context", known, before, resp.GetPublishContext(),
		"volume "+quote(req.GetVolumeId())+" on node "+quote(req.GetNodeId()))
	put(&nodes, req.GetNodeId(), maps.Clone(resp.GetPublishContext()))
	put(&h.published, req.GetVolumeId(), nodes)
}

func (h *History) plugin(r *remarks, resp *csi.GetPluginCapabilitiesResponse) {
	now := []string{}
	for _, c := range resp.GetCapabilities() {
		switch t := c.GetType().(type) {
		case *csi.PluginCapability_Service_:
			now = append(now, t.Service.GetType().String())
		case *csi.PluginCapability_VolumeExpansion_:
			now = append(now, "VolumeExpansion "+t.VolumeExpansion.GetType().String())
		}
	}
	slices.Sort(now)
	if h.capabilities != nil && !slices.Equal(h.capabilities, now) {
		r.add("capabilities", "constant", "are %v, but were %v before from the same vendor_version", now, h.capabilities)
	}
	h.capabilities = now
}

func (h *History) topology(r *remarks, path string, t *csi.Topology) {
	for _, k := range slices.Sorted(maps.Keys(t.GetSegments())) {
		prefix, _, found := strings.Cut(k, "/")
		switch {
		case !found:
		case h.prefix == nil:
			h.prefix = &prefix
		case prefix != *h.prefix:
			r.add(path+"segments["+quote(k)+"]", "topology-prefix", "has another prefix than earlier keys of this plugin, %s", quote(*h.prefix))
		}
	}
}

// remarks collects the violations of one response.
type remarks struct{ all []Violation }

func (r *remarks) add(field, rule, format string, args ...any) {
	r.all = append(r.all, Violation{Field: field, Rule: rule, Code: codes.Internal, Text: fmt.Sprintf(format, args...)})
}

// sameMap prints only keys, because values may be secret.
func (r *remarks) sameMap(field string, known bool, before, now map[string]string, of string) {
	if !known || maps.Equal(before, now) {
		return
	}
	var keys []string
	for k, v := range before {
		if w, ok := now[k]; !ok || v != w {
			keys = append(keys, k)
		}
	}
	for k := range now {
		if _, ok := before[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	r.add(field, "constant", "of %s differs from the previous one in %q", of, keys)
}

func name(req proto.Message) string {
	if n, ok := req.(interface{ GetName() string }); ok {
		return n.GetName()
	}
	return ""
}

// put writes to a map that may be nil.
func put[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[k] = v
}

// eachMessage calls f for m and the messages in it; path is "" or ends in a dot.
func eachMessage(m protoreflect.Message, path string, f func(path string, m proto.Message)) {
	f(path, m.Interface())
	fds := m.Descriptor().Fields()
	for i := range fds.Len() {
		fd := fds.Get(i)
		switch {
		case fd.Message() == nil || fd.IsMap() || !m.Has(fd):
		case fd.IsList():
			for j := range m.Get(fd).List().Len() {
				eachMessage(m.Get(fd).List().Get(j).Message(), path+index(string(fd.Name()), j)+".", f)
			}
		default:
			eachMessage(m.Get(fd).Message(), path+string(fd.Name())+".", f)
		}
	}
}
