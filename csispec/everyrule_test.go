package csispec

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// The tests in this file check every rule, of the oracle.s table and of the list in the
// comment of Violation, with a message that passes and one that fails.

// sound fills the required fields of a message.
func sound(m protoreflect.Message) proto.Message {
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		firstArm := fd.ContainingOneof() != nil && fd.ContainingOneof().Fields().Get(0) == fd
		if r := rules[fd.FullName()]; r.required || r.positive || firstArm {
			set(m, fd)
		}
	}
	switch m := m.Interface().(type) {
	case *csi.CapacityRange:
		m.RequiredBytes = 1
	case *csi.TopologyRequirement:
		m.Preferred = []*csi.Topology{topology("k", "v")}
	case *csi.Topology:
		m.Segments = map[string]string{"k": "v"}
	case *csi.VolumeGroupSnapshot:
		alignGroup(m)
	}
	return m.Interface()
}

// alignGroup sets the ID of a group in its members.
func alignGroup(m *csi.VolumeGroupSnapshot) {
	for _, s := range m.Snapshots {
		s.GroupSnapshotId = m.GroupSnapshotId
	}
}

// set sets a field to a valid value.
func set(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
	switch {
	case fd.IsMap():
		m.Mutable(fd).Map().Set(protoreflect.ValueOfString("k").MapKey(), protoreflect.ValueOfString("v"))
	case fd.IsList() && fd.Message() != nil:
		sound(m.Mutable(fd).List().AppendMutable().Message())
	case fd.IsList():
		m.Mutable(fd).List().Append(text(fd))
	case fd.Message() != nil:
		sound(m.Mutable(fd).Message())
	default:
		m.Set(fd, plain(fd))
	}
}

func plain(fd protoreflect.FieldDescriptor) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return text(fd)
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	}
	return number(fd, 1)
}

func number(fd protoreflect.FieldDescriptor, n int64) protoreflect.Value {
	if fd.Kind() == protoreflect.Int32Kind {
		return protoreflect.ValueOfInt32(int32(n))
	}
	return protoreflect.ValueOfInt64(n)
}

func text(fd protoreflect.FieldDescriptor) protoreflect.Value { return textOf(fd, 1) }

// textOf is a string of n bytes that fits any grammar.
func textOf(fd protoreflect.FieldDescriptor, n int) protoreflect.Value {
	if rules[fd.FullName()].path {
		return protoreflect.ValueOfString("/" + strings.Repeat("P", n-1))
	}
	return protoreflect.ValueOfString(strings.Repeat("X", n))
}

// A variant is a sound message with one field changed.
type variant struct {
	what   string
	change func(m protoreflect.Message)
	config config
	rule   string // that it breaks; "" if none
}

func variants(fd protoreflect.FieldDescriptor) (vs []variant) {
	r := rules[fd.FullName()]
	add := func(rule, what string, c config, change func(m protoreflect.Message)) {
		vs = append(vs, variant{what, change, c, rule})
	}
	value := func(rule, what string, v protoreflect.Value) {
		add(rule, what, config{}, func(m protoreflect.Message) {
			if fd.IsList() {
				m.Mutable(fd).List().Append(v)
			} else {
				m.Set(fd, v)
			}
		})
	}
	set := func(m protoreflect.Message) { set(m, fd) }
	if r.required {
		add("required", "left out", config{}, func(m protoreflect.Message) { m.Clear(fd) })
	}
	if r.gate != 0 {
		add("capability", "without the capability", config{absent: r.gate}, set)
		add("", "with the capability", config{present: r.gate}, set)
	}
	if proto.GetExtension(fd.Options(), csi.E_AlphaField).(bool) {
		add("alpha", "set", config{refuseAlpha: true}, set)
		add("", "set and alpha accepted", config{}, set)
	}
	switch {
	case fd.IsMap():
		entry := func(rule, what, k, v string) {
			add(rule, what, config{}, func(m protoreflect.Message) {
				m.Mutable(fd).Map().Set(protoreflect.ValueOfString(k).MapKey(), protoreflect.ValueOfString(v))
			})
		}
		if fd.Name() == "segments" { // has a grammar instead
			return vs
		}
		entry("size", "too large", "K", strings.Repeat("v", 4096))
		if !r.required {
			entry("", "as large as allowed", "K", strings.Repeat("v", 4095))
		}
		if proto.GetExtension(fd.Options(), csi.E_CsiSecret).(bool) {
			entry("secret-key", "a key with a blank", "a b", "v")
			entry("", "a key of every kind", "aZ09-_.", "v")
		}
	case fd.Kind() == protoreflect.StringKind:
		limit := 128
		switch {
		case r.path:
			limit = pathMax
		case r.max == unlimited:
			limit = 4096
		case r.max != 0:
			limit = r.max
		}
		value("size", "too long", textOf(fd, limit+1))
		value("", "as long as allowed", textOf(fd, limit))
		if fd.IsList() && r.required {
			value("required", "an empty element", protoreflect.ValueOfString(""))
		}
		if r.path {
			value("path-absolute", "relative", protoreflect.ValueOfString("a/b"))
			value("path-absolute", "with NUL", protoreflect.ValueOfString("/a\x00/b"))
		}
		if r.noControls {
			value("control-character", "BEL", protoreflect.ValueOfString("a\a"))
			value("", "TAB, LF, CR", protoreflect.ValueOfString("a\t\n\r"))
		}
		if !strings.HasSuffix(string(fd.Parent().Name()), "Request") {
			value("utf-8", "not UTF-8", protoreflect.ValueOfString("a\xff"))
		}
	case fd.Kind() == protoreflect.EnumKind:
		value("enum", "undeclared", protoreflect.ValueOfEnum(99))
		for i := range fd.Enum().Values().Len() {
			v := fd.Enum().Values().Get(i)
			if v.Number() == 0 {
				continue
			}
			value("", string(v.Name()), protoreflect.ValueOfEnum(v.Number()))
			if proto.GetExtension(v.Options(), csi.E_AlphaEnumValue).(bool) {
				add("alpha", string(v.Name()), config{refuseAlpha: true}, func(m protoreflect.Message) { m.Set(fd, protoreflect.ValueOfEnum(v.Number())) })
			}
		}
	case fd.Message() != nil && fd.Message().FullName() == "google.protobuf.Timestamp":
		value("timestamp", "out of range", protoreflect.ValueOfMessage((&timestamppb.Timestamp{Seconds: 1 << 60}).ProtoReflect()))
	case fd.Message() != nil && r.nonNegative: // a wrapper
		for rule, n := range map[string]int64{"non-negative": -1, "": 0} {
			add(rule, fmt.Sprint(n), config{}, func(m protoreflect.Message) {
				w := m.Mutable(fd).Message()
				w.Set(w.Descriptor().Fields().ByName("value"), protoreflect.ValueOfInt64(n))
			})
		}
	case r.positive:
		value("positive", "zero", number(fd, 0))
		value("positive", "negative", number(fd, -1))
	case r.nonNegative:
		value("non-negative", "negative", number(fd, -1))
		if fd.Parent().Name() != "CapacityRange" {
			value("", "zero", number(fd, 0))
		}
	}
	return vs
}

// TestEveryFieldRule breaks every rule of every field, one at a time, in a message that is
// otherwise valid.
func TestEveryFieldRule(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range prototypes() {
		violations := func(m proto.Message, c config) []Violation {
			w := walker{config: c, subject: m, utf8: !isRequest(m)}
			w.root(m)
			return w.found
		}
		if found := violations(sound(p.New()), config{}); len(found) != 0 {
			t.Errorf("%s: the sound one has %v", p.Descriptor().FullName(), found)
			continue
		}
		if alphaRequest(p.Descriptor()) {
			if found := violations(sound(p.New()), config{refuseAlpha: true}); len(found) != 1 || found[0].Rule != "alpha" {
				t.Errorf("%s: %v, want it refused as alpha", p.Descriptor().FullName(), found)
			}
		}
		for i := range p.Descriptor().Oneofs().Len() {
			od := p.Descriptor().Oneofs().Get(i)
			m := p.New()
			sound(m)
			m.Clear(m.WhichOneof(od))
			if found := violations(m.Interface(), config{}); len(found) == 0 || found[0].Rule != "oneof" || found[0].Field != string(od.Name()) {
				t.Errorf("%s: %v", od.FullName(), found)
			}
		}
		for i := range p.Descriptor().Fields().Len() {
			fd := p.Descriptor().Fields().Get(i)
			for _, v := range variants(fd) {
				m := p.New()
				sound(m)
				v.change(m)
				if g, ok := m.Interface().(*csi.VolumeGroupSnapshot); ok {
					alignGroup(g)
				}
				found := violations(m.Interface(), v.config)
				// One value may break several rules of a field, as when zero is not a type.
				broken := slices.ContainsFunc(found, func(x Violation) bool {
					return x.Rule == v.rule && (x.Field == string(fd.Name()) || strings.HasPrefix(x.Field, string(fd.Name())+"["))
				})
				if v.rule == "" && len(found) > 0 || v.rule != "" && !broken {
					t.Errorf("%s, %s: found %v, want %q", fd.FullName(), v.what, found, v.rule)
				}
				seen[v.rule] = true
			}
		}
	}
	for _, rule := range []string{"", "required", "size", "utf-8", "path-absolute", "control-character", "enum", "alpha", "non-negative", "positive", "timestamp", "secret-key", "capability"} {
		if !seen[rule] {
			t.Errorf("no variant for %q", rule)
		}
	}
}

// byHand has messages that pass and that fail the rules for more than one field or
// message.
var byHand = map[string]struct{ pass, fail func() error }{
	"capacity-range":     messages(&csi.CapacityRange{RequiredBytes: 1, LimitBytes: 1}, &csi.CapacityRange{RequiredBytes: 2, LimitBytes: 1}),
	"topology-key":       messages(topology("example.com/zone", "z"), topology("Example.com/zone", "z")),
	"topology-value":     messages(topology("zone", "a-_.9"), topology("zone", "-")),
	"topology-preferred": messages(requirement("a", "a"), requirement("a", "b")),
	"plugin-name":        messages(&csi.GetPluginInfoResponse{Name: "a.b", VendorVersion: "1"}, &csi.GetPluginInfoResponse{Name: "a..b", VendorVersion: "1"}),
	"staging-path": {
		func() error { return publishFrom("/staging") },
		func() error { return publishFrom("") },
	},
	"group-snapshot": {
		func() error { return Validate(sound((&csi.VolumeGroupSnapshot{}).ProtoReflect())) },
		func() error {
			g := sound((&csi.VolumeGroupSnapshot{}).ProtoReflect()).(*csi.VolumeGroupSnapshot)
			g.ReadyToUse = true
			return Validate(g)
		},
	},
	"duplicate":  messages(healthy("A", "B"), healthy("A", "A")),
	"camel-case": messages(healthy("DiskBad1"), healthy("disk bad")),

	"capability-unknown":   capabilities(csi.ControllerServiceCapability_RPC_LIST_VOLUMES, csi.ControllerServiceCapability_RPC_UNKNOWN),
	"capability-duplicate": capabilities(csi.ControllerServiceCapability_RPC_LIST_VOLUMES, csi.ControllerServiceCapability_RPC_GET_CAPACITY, csi.ControllerServiceCapability_RPC_GET_CAPACITY),
	"capability-missing":   capabilities(csi.ControllerServiceCapability_RPC_LIST_VOLUMES, csi.ControllerServiceCapability_RPC_CLONE_VOLUME),

	"metadata-type":     streams(allocated(1, 9, 0, 1), allocated(2, 9, 1, 1)),
	"metadata-capacity": streams(allocated(1, 9, 0, 1), allocated(1, 8, 1, 1)),
	"metadata-order":    streams(allocated(2, 9, 0, 2), allocated(2, 9, 1, 1)),
	"metadata-length":   streams(allocated(1, 9, 0, 1), allocated(1, 9, 1, 2)),
	"metadata-start": {
		func() error {
			return stream(&csi.GetMetadataAllocatedRequest{StartingOffset: 1}, allocated(1, 9, 0, 2))
		},
		func() error {
			return stream(&csi.GetMetadataAllocatedRequest{StartingOffset: 2}, allocated(1, 9, 0, 2))
		},
	},
	"metadata-count": {
		func() error {
			return stream(&csi.GetMetadataAllocatedRequest{MaxResults: 2}, allocated(1, 9, 0, 1, 1, 1))
		},
		func() error {
			return stream(&csi.GetMetadataAllocatedRequest{MaxResults: 1}, allocated(1, 9, 0, 1, 1, 1))
		},
	},

	"constant":        histories(&csi.Volume{VolumeId: "v", VolumeContext: map[string]string{"a": "b"}}, &csi.Volume{VolumeId: "v"}),
	"topology-prefix": histories(&csi.Volume{VolumeId: "v", AccessibleTopology: []*csi.Topology{topology("a/zone", "z")}}, &csi.Volume{VolumeId: "v", AccessibleTopology: []*csi.Topology{topology("b/zone", "z")}}),
}

type passFail = struct{ pass, fail func() error }

func messages(pass, fail proto.Message) passFail {
	return passFail{func() error { return Validate(pass) }, func() error { return Validate(fail) }}
}

func topology(k, v string) *csi.Topology { return &csi.Topology{Segments: map[string]string{k: v}} }

func requirement(requisite, preferred string) *csi.TopologyRequirement {
	return &csi.TopologyRequirement{Requisite: []*csi.Topology{topology("zone", requisite)}, Preferred: []*csi.Topology{topology("zone", preferred)}}
}

func publishFrom(staging string) error {
	m := sound((&csi.NodePublishVolumeRequest{}).ProtoReflect()).(*csi.NodePublishVolumeRequest)
	m.StagingTargetPath = staging
	return Validate(m, WithStageUnstageVolume())
}

func healthy(reasons ...string) *csi.VolumeHealth {
	h := &csi.VolumeHealth{VolumeId: "v"}
	for _, r := range reasons {
		h.HealthStatuses = append(h.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{Status: csi.VolumeHealthErrorType_DEGRADED, Reason: r})
	}
	return h
}

func capabilities(good csi.ControllerServiceCapability_RPC_Type, bad ...csi.ControllerServiceCapability_RPC_Type) passFail {
	check := func(c []csi.ControllerServiceCapability_RPC_Type) func() error {
		return func() error {
			all := Capabilities{Plugin: []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE}, Controller: c}
			if err := CheckCapabilities(all); err != nil {
				return err
			}
			if warnings := CapabilityWarnings(all); warnings != nil {
				return &Violations{All: warnings}
			}
			return nil
		}
	}
	return passFail{check([]csi.ControllerServiceCapability_RPC_Type{good}), check(bad)}
}

// allocated returns a message with pairs of offset and size.
func allocated(kind csi.BlockMetadataType, capacity int64, blocks ...int64) *csi.GetMetadataAllocatedResponse {
	m := &csi.GetMetadataAllocatedResponse{BlockMetadataType: kind, VolumeCapacityBytes: capacity}
	for i := 0; i < len(blocks); i += 2 {
		m.BlockMetadata = append(m.BlockMetadata, &csi.BlockMetadata{ByteOffset: blocks[i], SizeBytes: blocks[i+1]})
	}
	return m
}

func stream(req MetadataRequest, resps ...MetadataResponse) error {
	s := NewMetadataStream(req)
	var errs []error
	for _, r := range resps {
		errs = append(errs, s.Next(r))
	}
	return errors.Join(errs...)
}

// streams passes with the first message and fails with both.
func streams(first, second MetadataResponse) passFail {
	return passFail{
		func() error { return stream(&csi.GetMetadataAllocatedRequest{}, first) },
		func() error { return stream(&csi.GetMetadataAllocatedRequest{}, first, second) },
	}
}

// histories passes with the first volume twice and fails with both.
func histories(first, second *csi.Volume) passFail {
	observe := func(vs ...*csi.Volume) func() error {
		return func() error {
			var h History
			var errs []error
			for _, v := range vs {
				errs = append(errs, h.Observe(&csi.CreateVolumeRequest{Name: "n"}, &csi.CreateVolumeResponse{Volume: v}))
			}
			return errors.Join(errs...)
		}
	}
	return passFail{observe(first, first), observe(first, second)}
}

func TestEveryRuleByHand(t *testing.T) {
	for rule, tt := range byHand {
		if err := tt.pass(); err != nil {
			t.Errorf("%s: the good one has %v", rule, err)
		}
		v, ok := errors.AsType[*Violations](tt.fail())
		if !ok || !slices.ContainsFunc(v.All, func(x Violation) bool { return x.Rule == rule }) {
			t.Errorf("%s: the bad one has %v", rule, v)
		}
	}
}

// TestRulesAreListed compares the rules in the code, those in the comment
// of Violation, and those with a message above.
func TestRulesAreListed(t *testing.T) {
	inCode, listed, shown := map[string]bool{}, map[string]bool{}, map[string]bool{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if rule := ruleOf(n); rule != "" {
				inCode[rule] = true
			}
			return true
		})
	}
	source, err := os.ReadFile("violations.go")
	if err != nil {
		t.Fatal(err)
	}
	comment := regexp.MustCompile(`(?s)// Rule is a stable identifier of the rule: (.*?)\.\n\tRule string`).FindSubmatch(source)
	if comment == nil {
		t.Fatal("the comment of Violation lists no rules")
	}
	for _, w := range regexp.MustCompile(`[a-z]+(?:-[a-z0-9]+)+|required|size|oneof|enum|alpha|positive|timestamp|capability\b|duplicate|constant`).FindAll(comment[1], -1) {
		listed[string(w)] = true
	}
	for rule := range byHand {
		shown[rule] = true
	}
	for _, rule := range []string{"required", "size", "utf-8", "path-absolute", "control-character", "oneof", "enum", "alpha", "non-negative", "positive", "timestamp", "secret-key", "capability"} {
		shown[rule] = true // by TestEveryFieldRule
	}
	delete(listed, "capability-call") // is csiserver's
	code, list, show := slices.Sorted(maps.Keys(inCode)), slices.Sorted(maps.Keys(listed)), slices.Sorted(maps.Keys(shown))
	if !slices.Equal(code, list) || !slices.Equal(code, show) {
		t.Errorf("in the code  %q\nin the comment %q\nwith messages %q", code, list, show)
	}
}

// ruleOf is the rule that a call of add or addCode names.
func ruleOf(n ast.Node) string {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return ""
	}
	at := -1
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr: // add(field, rule, ...) of walker, checker and remarks
		at = map[string]int{"add": 1, "addCode": 2}[f.Sel.Name]
	case *ast.Ident: // add(code, field, rule, ...) of MetadataStream
		at = map[string]int{"add": 2}[f.Name]
	}
	if at <= 0 || at >= len(call.Args) {
		return ""
	}
	lit, ok := call.Args[at].(*ast.BasicLit)
	if !ok {
		return ""
	}
	rule, _ := strconv.Unquote(lit.Value)
	return rule
}
