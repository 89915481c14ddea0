package csispec

import (
	"cmp"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A sink receives the fields of a message that are set, in the order of their
// declaration. It decides what is printed or masked; the generated
// functions that call it pass only the kind of field.
type sink interface {
	text(name, v string)
	integer(name string, v int64)
	boolean(name string, v bool)
	// enum gets an empty label for a number that is not declared.
	enum(name string, number int32, label string)
	texts(name string, vs []string)
	// flags are mount flags, which may carry credentials.
	flags(name string, vs []string)
	entries(name string, m map[string]string)
	// secrets are a map with the csi_secret option, secret any other field.
	secrets(name string, m map[string]string)
	secret(name, v string)
	// masks reports whether entries with this key are masked.
	masks(key string) bool
	// open and close enclose the fields of a message.
	open(name string)
	close()
	// list calls each for n messages, with a sink for the fields of each.
	list(name string, n int, each func(s sink, i int))
}

func visit(s sink, m proto.Message) {
	if !visitKnown(s, m) {
		visitReflect(s, m.ProtoReflect())
	}
}

func visitList[M any](s sink, name string, ms []M, visit func(sink, M)) {
	s.list(name, len(ms), func(s sink, i int) { visit(s, ms[i]) })
}

// visitReflect visits messages of other packages, such as the
// health service, or messages newer than the generated code.
func visitReflect(s sink, m protoreflect.Message) {
	fds := m.Descriptor().Fields()
	for i := range fds.Len() {
		if fd := fds.Get(i); m.Has(fd) {
			visitReflectField(s, fd, m.Get(fd))
		}
	}
}

func visitReflectField(s sink, fd protoreflect.FieldDescriptor, v protoreflect.Value) {
	name := string(fd.Name())
	secret := proto.GetExtension(fd.Options(), csi.E_CsiSecret).(bool)
	switch {
	case fd.IsMap() && fd.MapValue().Message() != nil && !secret:
		s.open(name)
		for _, e := range sortedEntries(v.Map()) {
			quoted := appendQuoted(nil, e.key)
			key := string(quoted[1 : len(quoted)-1]) // names are printed as they are
			if s.masks(e.key) {
				s.secret(key, e.value.String())
				continue
			}
			s.open(key)
			visitReflect(s, e.value.Message())
			s.close()
		}
		s.close()
	case fd.IsMap():
		m := make(map[string]string, v.Map().Len())
		for _, e := range sortedEntries(v.Map()) {
			m[e.key] = e.value.String()
		}
		if secret {
			s.secrets(name, m)
		} else {
			s.entries(name, m)
		}
	case secret:
		s.secret(name, v.String())
	case fd.IsList() && fd.Message() != nil:
		s.list(name, v.List().Len(), func(s sink, i int) { visitReflect(s, v.List().Get(i).Message()) })
	case fd.IsList():
		vs := make([]string, v.List().Len())
		for i := range vs {
			vs[i] = v.List().Get(i).String()
		}
		if name == "mount_flags" {
			s.flags(name, vs)
		} else {
			s.texts(name, vs)
		}
	case fd.Message() != nil:
		s.open(name)
		visitReflect(s, v.Message())
		s.close()
	case fd.Kind() == protoreflect.BoolKind:
		s.boolean(name, v.Bool())
	case fd.Kind() == protoreflect.EnumKind:
		label := ""
		if d := fd.Enum().Values().ByNumber(v.Enum()); d != nil {
			label = string(d.Name())
		}
		s.enum(name, int32(v.Enum()), label)
	case slices.Contains(integers, fd.Kind()):
		s.integer(name, v.Int())
	default:
		s.text(name, v.String())
	}
}

var integers = []protoreflect.Kind{protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind,
	protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind}

type entry struct {
	key   string
	value protoreflect.Value
}

func sortedEntries(m protoreflect.Map) []entry {
	var all []entry
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		all = append(all, entry{k.String(), v})
		return true
	})
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.key, b.key) })
	return all
}
