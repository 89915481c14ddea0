package csispec

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Sizes in bytes that the specification sets.
const (
	stringMax = 128
	mapMax    = 4096
	flagsMax  = 4096
	nodeIDMax = 256
	// pathMax is PATH_MAX of Linux without the terminating zero: the general
	// limit of 128 is lifted for paths, up to what the system can open.
	pathMax = 4095
	// unlimited marks strings whose size a hand-written rule judges.
	unlimited = -1
)

// Validate reports every rule of CSI v1.13 that m breaks, as a *[Violations]
// error, or nil. It judges requests in full. Responses are judged by the same
// rules (required, sizes, ranges, topology) with the code INTERNAL, as the
// mistake is the plugin's; a plugin that already did the work should log such
// an error rather than answer with it.
//
// A required bool or number cannot be told from its zero value and is not
// demanded. Messages outside the package csi.v1 pass.
//
// Kubernetes adds entries that begin with csi.storage.k8s.io/ to maps which the
// plugin made; they do not count towards the size of a map.
//
// Validate does not change m and is safe for concurrent use.
func Validate(m proto.Message, opts ...Option) error {
	if m == nil {
		return &Violations{Subject: "message", All: []Violation{{
			Rule: "required", Code: codes.InvalidArgument, Text: "is nil",
		}}}
	}
	r := m.ProtoReflect()
	name := r.Descriptor().FullName()
	if name.Parent() != "csi.v1" {
		return nil
	}
	w := walker{code: codes.InvalidArgument}
	if strings.HasSuffix(string(name), "Response") {
		w.code = codes.Internal
	}
	for _, o := range opts {
		o.apply(&w.config)
	}
	w.message(r, "")
	if len(w.found) == 0 {
		return nil
	}
	return &Violations{Subject: string(name.Name()), All: w.found}
}

type walker struct {
	config
	code  codes.Code
	found []Violation
}

func (w *walker) add(field, rule, format string, args ...any) {
	w.addCode(w.code, field, rule, format, args...)
}

func (w *walker) addCode(code codes.Code, field, rule, format string, args ...any) {
	w.found = append(w.found, Violation{Field: field, Rule: rule, Code: code, Text: fmt.Sprintf(format, args...)})
}

// message judges one message; path is "" or ends in a dot.
func (w *walker) message(m protoreflect.Message, path string) {
	d := m.Descriptor()
	for i := range d.Oneofs().Len() {
		// All six oneofs of the specification are mandatory where their
		// message is present.
		if od := d.Oneofs().Get(i); m.WhichOneof(od) == nil {
			w.add(path+string(od.Name()), "oneof", "needs exactly one of %s", arms(od))
		}
	}
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		r := rules[fd.FullName()]
		name := path + string(fd.Name())
		if !m.Has(fd) {
			if r.required && !w.emptyAllowed(fd) {
				w.add(name, "required", "is required")
			}
			continue
		}
		w.field(fd, r, m.Get(fd), name)
	}
	if hand := handRules[d.FullName()]; hand != nil {
		hand(w, m.Interface(), path)
	}
}

func (w *walker) field(fd protoreflect.FieldDescriptor, r rule, v protoreflect.Value, name string) {
	switch {
	case fd.IsMap():
		w.mapField(fd, v.Map(), name)
	case fd.IsList():
		l := v.List()
		for i := range l.Len() {
			w.single(fd, r, l.Get(i), index(name, i))
		}
	default:
		w.single(fd, r, v, name)
	}
}

func (w *walker) single(fd protoreflect.FieldDescriptor, r rule, v protoreflect.Value, name string) {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		m := v.Message()
		switch d := m.Descriptor(); {
		case d.FullName() == "google.protobuf.Int64Value":
			w.integer(fd, r, m.Get(d.Fields().ByName("value")).Int(), name)
		case d.ParentFile().Package() == "csi.v1":
			w.message(m, name+".")
		}
	case protoreflect.StringKind:
		w.text(fd, r, v.String(), name)
	case protoreflect.EnumKind:
		if fd.Enum().Values().ByNumber(v.Enum()) == nil {
			w.add(name, "enum", "has the value %d, which CSI v1.13 does not declare", v.Enum())
		}
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		w.integer(fd, r, v.Int(), name)
	}
}

func (w *walker) integer(fd protoreflect.FieldDescriptor, r rule, v int64, name string) {
	if !r.nonNegative || v >= 0 {
		return
	}
	code := w.code
	if fd.Name() == "starting_offset" {
		// The table of errors of both SnapshotMetadata calls lists a negative
		// offset under OUT_OF_RANGE.
		code = codes.OutOfRange
	}
	w.addCode(code, name, "non-negative", "is %d and must not be negative", v)
}

func (w *walker) text(fd protoreflect.FieldDescriptor, r rule, v, name string) {
	if v == "" { // only within a list
		if r.required {
			w.add(name, "required", "is empty")
		}
		return
	}
	limit := stringMax
	switch {
	case r.path:
		limit = pathMax
	case r.max != 0:
		limit = r.max
	}
	if len(v) > limit && limit != unlimited {
		w.add(name, "size", "is %d bytes long, the limit is %d", len(v), limit)
		return
	}
	if r.path && !absolute(v) && !w.relativeAllowed(fd) {
		w.add(name, "path-absolute", "is %s and must be an absolute path", quote(v))
	}
	if r.noControls {
		for _, c := range v {
			if isControl(c) {
				w.add(name, "control-character", "contains the control character %U", c)
				break
			}
		}
	}
}

// isControl tells the characters that are banned from names: controls but TAB,
// LF and CR.
func isControl(c rune) bool {
	switch c {
	case '\t', '\n', '\r':
		return false
	}
	return c < 0x20 || c >= 0x7f && c <= 0x9f
}

// absolute also accepts a path without a drive letter on Windows, because the
// kubelet there sends such paths.
func absolute(p string) bool {
	return filepath.IsAbs(p) || os.IsPathSeparator(p[0])
}

func (w *walker) mapField(fd protoreflect.FieldDescriptor, m protoreflect.Map, name string) {
	size, badKeys := 0, 0
	secret := isSecret(fd)
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		key := k.String()
		if !strings.HasPrefix(key, "csi.storage.k8s.io/") {
			size += len(key) + len(v.String())
			if secret && !secretKey(key) {
				badKeys++
			}
		}
		return true
	})
	if size > mapMax {
		w.add(name, "size", "holds %d bytes of keys and values, the limit is %d", size, mapMax)
	}
	if badKeys > 0 {
		// The keys are not printed: somebody may have put the secret there.
		w.add(name, "secret-key", "has %d keys with characters other than letters, digits, '-', '_' and '.'", badKeys)
	}
}

// secretKey tells whether a key of a secrets map has the charset that the
// specification gives it.
func secretKey(k string) bool {
	for i := range len(k) {
		if c := k[i]; !alnum(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return k != ""
}

func alnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func arms(od protoreflect.OneofDescriptor) string {
	names := make([]string, od.Fields().Len())
	for i := range names {
		names[i] = string(od.Fields().Get(i).Name())
	}
	return strings.Join(names, ", ")
}

func (w *walker) emptyAllowed(fd protoreflect.FieldDescriptor) bool {
	switch fd.FullName() {
	case "csi.v1.ControllerModifyVolumeRequest.mutable_parameters":
		return w.emptyMutableParameters
	case "csi.v1.DeleteVolumeGroupSnapshotRequest.snapshot_ids",
		"csi.v1.GetVolumeGroupSnapshotRequest.snapshot_ids":
		return w.emptySnapshotIDs
	}
	return false
}

func (w *walker) relativeAllowed(fd protoreflect.FieldDescriptor) bool {
	switch fd.FullName() {
	case "csi.v1.NodeGetVolumeStatsRequest.volume_path",
		"csi.v1.NodeExpandVolumeRequest.volume_path":
		return w.relativeVolumePath
	}
	return false
}

func index(field string, i int) string { return fmt.Sprintf("%s[%d]", field, i) }

// quote quotes s for an error text, cut to what a reader can use.
func quote(s string) string {
	const enough = 128
	if len(s) > enough {
		return strconv.Quote(s[:enough]) + "..."
	}
	return strconv.Quote(s)
}
