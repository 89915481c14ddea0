package csispec

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// An oracle is a walker by reflection, with the rules of a table that was written by
// hand. It is slow and has to agree with the generated
// code; only the handwritten rules are shared.
type oracle struct{ walker }

func (o *oracle) message(m protoreflect.Message) {
	d := m.Descriptor()
	if o.refuseAlpha && alphaRequest(d) {
		o.alphaCall()
		return
	}
	for i := range d.Oneofs().Len() {
		if od := d.Oneofs().Get(i); m.WhichOneof(od) == nil && !o.allowUnknown {
			o.add(string(od.Name()), "oneof", "")
		}
	}
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		r := rules[fd.FullName()]
		name := string(fd.Name())
		if !m.Has(fd) {
			statusNeeded := fd.FullName() == "csi.v1.ListVolumesResponse.Entry.status" && o.present&publishedNodes != 0
			if (r.required || statusNeeded) && !o.emptyAllowed(fd) {
				o.missing(name)
			}
			if r.positive {
				o.add(name, "positive", "")
			}
			continue
		}
		if r.gate&o.absent != 0 && !everywhere(m.Get(fd).Interface()) {
			o.gated(name, r.gate)
		}
		if o.refuseAlpha && proto.GetExtension(fd.Options(), csi.E_AlphaField).(bool) {
			o.alphaField(name)
		}
		o.field(fd, r, m.Get(fd))
	}
	if hand := handByType(&o.walker, m.Interface()); hand != nil {
		hand()
	}
}

// everywhere reports whether a field has topologies, none of which has a segment.
func everywhere(v any) bool {
	m, ok := v.(protoreflect.Message)
	if !ok {
		return false
	}
	switch m := m.Interface().(type) {
	case *csi.Topology:
		return len(m.Segments) == 0
	case *csi.TopologyRequirement:
		all := slices.Concat(m.Requisite, m.Preferred)
		return len(all) > 0 && !slices.ContainsFunc(all, func(t *csi.Topology) bool { return len(t.Segments) > 0 })
	}
	return false
}

func (o *oracle) field(fd protoreflect.FieldDescriptor, r rule, v protoreflect.Value) {
	name := string(fd.Name())
	switch {
	case fd.IsMap():
		o.mapField(fd, v.Map())
	case fd.IsList():
		size := 0
		for i := range v.List().Len() {
			e := v.List().Get(i)
			if fd.Message() != nil {
				o.enterAt(name, i)
				o.message(e.Message())
				o.leave()
				continue
			}
			size += len(e.String())
			o.single(fd, r, e, index(name, i))
		}
		if r.max == unlimited && size > 4096 {
			o.add(name, "size", "")
		}
	case fd.Message() != nil && fd.Message().ParentFile().Package() == "csi.v1":
		o.enter(name)
		o.message(v.Message())
		o.leave()
	case fd.Message() != nil:
		switch m := v.Message().Interface().(type) {
		case *timestamppb.Timestamp:
			if !m.IsValid() {
				o.add(name, "timestamp", "")
			}
		case interface{ GetValue() int64 }:
			o.integer(name, r, fd, m.GetValue())
		}
	default:
		o.single(fd, r, v, name)
	}
}

func (o *oracle) single(fd protoreflect.FieldDescriptor, r rule, v protoreflect.Value, name string) {
	switch fd.Kind() {
	case protoreflect.StringKind:
		o.text2(fd, r, v.String(), name)
	case protoreflect.EnumKind:
		d := fd.Enum().Values().ByNumber(v.Enum())
		switch {
		case d == nil && !o.allowUnknown:
			o.add(name, "enum", "")
		case d != nil && o.refuseAlpha && proto.GetExtension(d.Options(), csi.E_AlphaEnumValue).(bool):
			o.add(name, "alpha", "")
		}
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		o.integer(name, r, fd, v.Int())
	}
}

func (o *oracle) integer(name string, r rule, fd protoreflect.FieldDescriptor, v int64) {
	switch {
	case r.positive && v <= 0:
		o.add(name, "positive", "")
	case r.nonNegative && v < 0 && fd.Name() == "starting_offset":
		o.addCode(codes.OutOfRange, name, "non-negative", "")
	case r.nonNegative && v < 0:
		o.add(name, "non-negative", "")
	}
}

func (o *oracle) text2(fd protoreflect.FieldDescriptor, r rule, v, name string) {
	limit := 128
	switch {
	case r.path:
		limit = pathMax
	case r.max != 0:
		limit = r.max
	}
	if v == "" { // within a list
		if r.required {
			o.add(name, "required", "")
		}
		return
	}
	if len(v) > limit && limit != unlimited {
		o.add(name, "size", "")
	}
	if o.utf8 && !utf8.ValidString(v) {
		o.add(name, "utf-8", "")
	}
	if r.path && (!absolute(v) && !o.relativeAllowed(fd) || strings.Contains(v, "\x00")) {
		o.add(name, "path-absolute", "")
	}
	if r.noControls && strings.ContainsFunc(v, isControl) {
		o.add(name, "control-character", "")
	}
}

func (o *oracle) mapField(fd protoreflect.FieldDescriptor, m protoreflect.Map) {
	size, bad, valid := 0, false, true
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		valid = valid && utf8.ValidString(k.String()) && utf8.ValidString(v.String())
		if key := k.String(); !strings.HasPrefix(key, "csi.storage.k8s.io/") {
			size += len(key) + len(v.String())
			bad = bad || !secretKey(key)
		}
		return true
	})
	if !valid && o.utf8 {
		o.add(string(fd.Name()), "utf-8", "")
	}
	if size > 4096 {
		o.add(string(fd.Name()), "size", "")
	}
	if bad && proto.GetExtension(fd.Options(), csi.E_CsiSecret).(bool) {
		o.add(string(fd.Name()), "secret-key", "")
	}
}

func (o *oracle) emptyAllowed(fd protoreflect.FieldDescriptor) bool {
	switch fd.FullName() {
	case "csi.v1.ControllerModifyVolumeRequest.mutable_parameters":
		return o.emptyMutableParameters
	case "csi.v1.DeleteVolumeGroupSnapshotRequest.snapshot_ids", "csi.v1.GetVolumeGroupSnapshotRequest.snapshot_ids":
		return o.emptySnapshotIDs
	}
	return false
}

func (o *oracle) relativeAllowed(fd protoreflect.FieldDescriptor) bool {
	switch fd.FullName() {
	case "csi.v1.NodeGetVolumeStatsRequest.volume_path", "csi.v1.NodeExpandVolumeRequest.volume_path":
		return o.relativeVolumePath
	}
	return false
}

func alphaRequest(d protoreflect.MessageDescriptor) bool {
	for i := range csi.File_csi_proto.Services().Len() {
		s := csi.File_csi_proto.Services().Get(i)
		for j := range s.Methods().Len() {
			if m := s.Methods().Get(j); m.Input() == d {
				return proto.GetExtension(s.Options(), csi.E_AlphaService).(bool) ||
					proto.GetExtension(m.Options(), csi.E_AlphaMethod).(bool)
			}
		}
	}
	return false
}

// handByType is the handwritten rule for a message, if it has one.
func handByType(w *walker, m proto.Message) func() {
	switch m := m.(type) {
	case *csi.CapacityRange:
		return func() { w.capacityRangeByHand(m) }
	case *csi.Topology:
		return func() { w.segments(m.GetSegments()) } // without the fast path
	case *csi.TopologyRequirement:
		return func() { w.topologyRequirementByHand(m) }
	case *csi.VolumeCapability_AccessMode:
		return func() { w.volumeCapabilityAccessModeByHand(m) }
	case *csi.NodePublishVolumeRequest:
		return func() { w.nodePublishVolumeRequestByHand(m) }
	case *csi.GetPluginInfoResponse:
		return func() { w.getPluginInfoResponseByHand(m) }
	case *csi.VolumeGroupSnapshot:
		return func() { w.volumeGroupSnapshotByHand(m) }
	case *csi.VolumeHealth:
		return func() { w.volumeHealthByHand(m) }
	case *csi.VolumeHealth_VolumeHealthEntry:
		return func() { w.volumeHealthVolumeHealthEntryByHand(m) }
	case *csi.NodeGetStorageHealthResponse:
		return func() { w.nodeGetStorageHealthResponseByHand(m) }
	case *csi.NodeGetStorageHealthResponse_StorageBackendHealth:
		return func() { w.nodeGetStorageHealthResponseStorageBackendHealthByHand(m) }
	}
	return nil
}

// prototypes has one empty message of every type of CSI.
func prototypes() []protoreflect.Message {
	var all []protoreflect.Message
	for i := range csi.File_csi_proto.Messages().Len() {
		all = appendNested(all, csi.File_csi_proto.Messages().Get(i))
	}
	return all
}

func appendNested(to []protoreflect.Message, d protoreflect.MessageDescriptor) []protoreflect.Message {
	if d.IsMapEntry() {
		return to
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(err)
	}
	to = append(to, t.New())
	for i := range d.Messages().Len() {
		to = appendNested(to, d.Messages().Get(i))
	}
	return to
}

// scribble fills a message with values of which about half break a rule.
func scribble(r *rand.Rand, m protoreflect.Message) {
	fds := m.Descriptor().Fields()
	for i := range fds.Len() {
		fd := fds.Get(i)
		if r.IntN(5) == 0 {
			continue
		}
		switch {
		case fd.IsMap():
			for range r.IntN(4) {
				m.Mutable(fd).Map().Set(protoreflect.ValueOfString(pick(r, words)).MapKey(), protoreflect.ValueOfString(pick(r, words)))
			}
		case fd.IsList():
			l := m.Mutable(fd).List()
			for range r.IntN(4) {
				if fd.Message() != nil {
					scribble(r, l.AppendMutable().Message())
				} else {
					l.Append(scalar(r, fd))
				}
			}
		case fd.Message() != nil:
			scribble(r, m.Mutable(fd).Message())
		default:
			m.Set(fd, scalar(r, fd))
		}
	}
}

var words = []string{"", "a", "A", "/p", "p/q", "Zone", "zone", "a.example.com/zone", "b.example.com/zone", "x\x01y", "a b", "z\u0085", "DiskBad",
	tokensKey, "csi.storage.k8s.io/pod.name", "password=x", "bad\xff", "a\"\\\n<\u2028>\u00e9", strings.Repeat("x", 128), strings.Repeat("x", 129), "/" + strings.Repeat("p", 256),
	strings.Repeat("y", 4096), "/" + strings.Repeat("p", 4095)}

func pick(r *rand.Rand, from []string) string { return from[r.IntN(len(from))] }

func scalar(r *rand.Rand, fd protoreflect.FieldDescriptor) protoreflect.Value {
	n := r.Int64N(22) - 2
	if r.IntN(20) == 0 {
		n = int64(r.Int32()) * 1000000
	}
	switch fd.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(pick(r, words))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(r.IntN(2) == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(n))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	default:
		return protoreflect.ValueOfInt64(n)
	}
}

func randomConfig(r *rand.Rand) config {
	if r.IntN(2) == 0 {
		return config{}
	}
	present := features(r.IntN(1 << len(featureNames)))
	coin := func() bool { return r.IntN(2) == 0 }
	return config{present: present, absent: ^present & features(r.IntN(1<<len(featureNames))), relativeVolumePath: coin(), emptyMutableParameters: coin(),
		emptySnapshotIDs: coin(), allowUnknown: coin(), refuseAlpha: r.IntN(4) == 0}
}

// sameFindings compares the generated validator with the oracle.
func sameFindings(t *testing.T, c config, m proto.Message) (found int) {
	t.Helper()
	summary := func(vs []Violation) []string {
		var out []string
		for _, v := range vs {
			if !utf8.ValidString(v.Text) || strings.Contains(v.Text, "%!") {
				t.Errorf("text %q", v.Text)
			}
			out = append(out, v.Field+" "+v.Rule+" "+v.Code.String())
		}
		slices.Sort(out)
		return out
	}
	o := oracle{walker{config: c, subject: m, utf8: !isRequest(m)}}
	o.message(m.ProtoReflect())
	w := walker{config: c, subject: m, utf8: !isRequest(m)}
	w.root(m)
	if got, want := summary(w.found), summary(o.found); !slices.Equal(got, want) {
		t.Errorf("%T %v\ngot  %q\nwant %q", m, m, got, want)
	}
	return len(w.found)
}

// samePrint compares the generated printer with reflection.
func samePrint(t *testing.T, m proto.Message) {
	t.Helper()
	keys := []string{"zone"}
	byReflection := newJSON(keys)
	byReflection.begin()
	visitReflect(byReflection, m.ProtoReflect())
	byReflection.end()
	if got, want := Redact(m, keys...).String(), byReflection.done(); got != want {
		t.Errorf("%T\ngot  %s\nwant %s", m, got, want)
	}
}

func TestGeneratedAgreesWithOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	messages, sound, rulesSeen := 0, 0, map[string]bool{}
	for range 60 {
		for _, p := range prototypes() {
			m := p.New()
			scribble(r, m)
			if !visitKnown(new(Secrets), m.Interface()) {
				t.Fatalf("no generated printer for %v", m.Descriptor().FullName())
			}
			if sameFindings(t, randomConfig(r), m.Interface()) == 0 {
				sound++
			}
			samePrint(t, m.Interface())
			messages++
			if v, ok := Validate(m.Interface(), WithAlphaRejected()).(*Violations); ok {
				for _, x := range v.All {
					rulesSeen[x.Rule] = true
				}
			}
			if t.Failed() {
				return
			}
		}
	}
	if sound == 0 || sound == messages || len(rulesSeen) < 15 {
		t.Errorf("%d of %d messages broke no rule, others %d rules: the test has lost its edge", sound, messages, len(rulesSeen))
	}
}

// FuzzGenerated does the same with decoded messages.
func FuzzGenerated(f *testing.F) {
	all := prototypes()
	r := rand.New(rand.NewPCG(3, 4))
	for i, p := range all {
		m := p.New()
		scribble(r, m)
		wire, err := proto.Marshal(m.Interface())
		if err == nil { // not with invalid UTF-8
			f.Add(uint8(i), uint64(i), wire)
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, seed uint64, wire []byte) {
		m := all[int(which)%len(all)].New().Interface()
		if proto.Unmarshal(wire, m) != nil {
			return
		}
		sameFindings(t, randomConfig(rand.New(rand.NewPCG(seed, 0))), m)
		samePrint(t, m)
	})
}
