package csispec

import (
	"encoding/json"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	mask = "***stripped***"
	// tokensKey is the entry of volume_context (and, since Kubernetes 1.35, of
	// secrets) in which kubelet hands over service-account tokens. It carries
	// no csi_secret option, which made drivers log tokens (CVE-2023-2878,
	// CVE-2024-3744).
	tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"
)

// Redacted is a message fit for a log. It computes nothing until it is printed,
// and it refers to the message instead of copying it: print it before the
// message changes. It implements [slog.LogValuer] and [fmt.Stringer].
type Redacted struct {
	message proto.Message
	keys    []string
}

// Redact prepares m for a log. What it prints has a mask in place of
//
//   - every field with the csi_secret option,
//   - every map entry, at any depth, whose key is one of keys or Kubernetes'
//     csi.storage.k8s.io/serviceAccount.tokens,
//   - the value of every mount flag that carries a credential, such as
//     password=, credentials=, secret= or token=, together with whatever follows
//     in the same flag, and the user info of a URL.
//
// Fields that this version of CSI does not know are left out.
func Redact(m proto.Message, keys ...string) Redacted {
	return Redacted{message: m, keys: keys}
}

func (r Redacted) reflect() (protoreflect.Message, bool) {
	if r.message == nil {
		return nil, false
	}
	m := r.message.ProtoReflect()
	return m, m.IsValid()
}

// String renders the message as one line of JSON with the names of the proto
// fields, in their order, and with map keys sorted.
func (r Redacted) String() string {
	m, ok := r.reflect()
	if !ok {
		return "null"
	}
	return string(r.appendMessage(nil, m))
}

// LogValue renders the message as a group with the names of the proto fields.
func (r Redacted) LogValue() slog.Value {
	m, ok := r.reflect()
	if !ok {
		return slog.AnyValue(nil)
	}
	return r.group(m)
}

func (r Redacted) group(m protoreflect.Message) slog.Value {
	var attrs []slog.Attr
	fields(m, func(fd protoreflect.FieldDescriptor, v protoreflect.Value) {
		name := string(fd.Name())
		switch {
		case isSecret(fd):
			attrs = append(attrs, slog.String(name, mask))
		case isStringMap(fd):
			var entries []slog.Attr
			for _, k := range sortedKeys(v.Map()) {
				entries = append(entries, slog.String(k.String(), r.entry(k, v.Map())))
			}
			attrs = append(attrs, slog.Attr{Key: name, Value: slog.GroupValue(entries...)})
		case fd.IsMap() || fd.IsList():
			attrs = append(attrs, slog.Any(name, rawJSON(r.appendField(nil, fd, v))))
		case fd.Message() != nil:
			attrs = append(attrs, slog.Attr{Key: name, Value: r.group(v.Message())})
		case fd.Kind() == protoreflect.StringKind:
			attrs = append(attrs, slog.String(name, v.String()))
		case fd.Kind() == protoreflect.BoolKind:
			attrs = append(attrs, slog.Bool(name, v.Bool()))
		case fd.Kind() == protoreflect.Int32Kind || fd.Kind() == protoreflect.Int64Kind:
			attrs = append(attrs, slog.Int64(name, v.Int()))
		default:
			attrs = append(attrs, slog.Any(name, rawJSON(r.appendSingle(nil, fd, v))))
		}
	})
	if len(attrs) == 0 {
		// Handlers drop an empty group, but a block volume is one.
		return slog.AnyValue(rawJSON("{}"))
	}
	return slog.GroupValue(attrs...)
}

// rawJSON is printed as it is by slog's JSON and text handlers alike.
type rawJSON string

func (j rawJSON) MarshalJSON() ([]byte, error) { return []byte(j), nil }

func (r Redacted) appendMessage(b []byte, m protoreflect.Message) []byte {
	b = append(b, '{')
	first := true
	fields(m, func(fd protoreflect.FieldDescriptor, v protoreflect.Value) {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = appendQuoted(b, string(fd.Name()))
		b = append(b, ':')
		b = r.appendField(b, fd, v)
	})
	return append(b, '}')
}

func (r Redacted) appendField(b []byte, fd protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch {
	case isSecret(fd):
		return appendQuoted(b, mask)
	case fd.IsMap():
		b = append(b, '{')
		for i, k := range sortedKeys(v.Map()) {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendQuoted(b, k.String())
			b = append(b, ':')
			if r.maskedKey(k) || isStringMap(fd) {
				b = appendQuoted(b, r.entry(k, v.Map()))
			} else {
				b = r.appendSingle(b, fd.MapValue(), v.Map().Get(k))
			}
		}
		return append(b, '}')
	case fd.IsList():
		b = append(b, '[')
		for i := range v.List().Len() {
			if i > 0 {
				b = append(b, ',')
			}
			b = r.appendSingle(b, fd, v.List().Get(i))
		}
		return append(b, ']')
	}
	return r.appendSingle(b, fd, v)
}

func (r Redacted) appendSingle(b []byte, fd protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch fd.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return r.appendMessage(b, v.Message())
	case protoreflect.StringKind:
		if isMountFlags(fd) {
			return appendQuoted(b, redactFlag(v.String()))
		}
		return appendQuoted(b, v.String())
	case protoreflect.EnumKind:
		if d := fd.Enum().Values().ByNumber(v.Enum()); d != nil {
			return appendQuoted(b, string(d.Name()))
		}
		return strconv.AppendInt(b, int64(v.Enum()), 10)
	case protoreflect.BoolKind:
		return strconv.AppendBool(b, v.Bool())
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return strconv.AppendInt(b, v.Int(), 10)
	}
	// No message of CSI has a field of any other kind, and those that it
	// borrows are covered above.
	return appendQuoted(b, v.String())
}

// entry is the printable value of one entry of a map.
func (r Redacted) entry(k protoreflect.MapKey, m protoreflect.Map) string {
	if r.maskedKey(k) {
		return mask
	}
	return m.Get(k).String()
}

func (r Redacted) maskedKey(k protoreflect.MapKey) bool {
	s := k.String()
	return s == tokensKey || slices.Contains(r.keys, s)
}

// fields calls f for every populated field, in the order of declaration.
func fields(m protoreflect.Message, f func(protoreflect.FieldDescriptor, protoreflect.Value)) {
	fds := m.Descriptor().Fields()
	for i := range fds.Len() {
		if fd := fds.Get(i); m.Has(fd) {
			f(fd, m.Get(fd))
		}
	}
}

func sortedKeys(m protoreflect.Map) []protoreflect.MapKey {
	keys := make([]protoreflect.MapKey, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return strings.Compare(a.String(), b.String()) })
	return keys
}

func isSecret(fd protoreflect.FieldDescriptor) bool {
	return proto.GetExtension(fd.Options(), csi.E_CsiSecret).(bool)
}

func isStringMap(fd protoreflect.FieldDescriptor) bool {
	return fd.IsMap() && fd.MapValue().Kind() == protoreflect.StringKind
}

// isMountFlags finds the field by name: the specification calls its content
// sensitive but gives it no option.
func isMountFlags(fd protoreflect.FieldDescriptor) bool { return fd.Name() == "mount_flags" }

func appendQuoted(b []byte, s string) []byte {
	q, err := json.Marshal(s)
	if err != nil { // a string always marshals
		return append(b, `""`...)
	}
	return append(b, q...)
}
