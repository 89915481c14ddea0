package main

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// writeVisits writes csispec/visit_gen.go: a function for every message that
// hands its fields to a sink, as visitReflect does for messages of others.
func writeVisits(s *spec) string {
	var b strings.Builder
	f := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	var all []protoreflect.MessageDescriptor
	seen := map[protoreflect.FullName]bool{}
	var add func(m protoreflect.MessageDescriptor)
	add = func(m protoreflect.MessageDescriptor) {
		if m == nil || m.IsMapEntry() || seen[m.FullName()] {
			return
		}
		seen[m.FullName()] = true
		all = append(all, m)
		for i := range m.Fields().Len() {
			add(m.Fields().Get(i).Message())
		}
	}
	for _, m := range s.messages {
		add(m)
	}
	f("import (\n\t%q\n\t%q\n\t%q\n\t%q\n)\n\n", specModule+"/lib/go/csi", "google.golang.org/protobuf/proto",
		"google.golang.org/protobuf/types/known/timestamppb", "google.golang.org/protobuf/types/known/wrapperspb")
	f("// visitKnown hands the fields of a message of CSI to s and reports whether it is one.\n")
	f("func visitKnown(s sink, m proto.Message) bool {\n\tswitch m := m.(type) {\n")
	for _, m := range s.messages {
		f("\tcase *%s:\n\t\tvisit%s(s, m)\n", goType(m), goName(m))
	}
	f("\tdefault:\n\t\treturn false\n\t}\n\treturn true\n}\n")
	for _, m := range all {
		receiver := "m"
		if m.Fields().Len() == 0 {
			receiver = "_"
		}
		s := "s"
		if m.Fields().Len() == 0 {
			s = "_"
		}
		f("\nfunc visit%s(%s sink, %s *%s) {\n", goName(m), s, receiver, goType(m))
		for i := range m.Fields().Len() {
			visitField(f, m.Fields().Get(i))
		}
		f("}\n")
	}
	return b.String()
}

func visitField(f func(string, ...any), fd protoreflect.FieldDescriptor) {
	name, get := string(fd.Name()), getter(fd)
	switch {
	case fd.IsMap() && option(fd, "csi.v1.csi_secret"):
		f("\tif x := %s; len(x) > 0 {\n\t\ts.secrets(%q, x)\n\t}\n", get, name)
	case fd.IsMap():
		f("\tif x := %s; len(x) > 0 {\n\t\ts.entries(%q, x)\n\t}\n", get, name)
	case fd.IsList() && fd.Message() != nil:
		f("\tif x := %s; len(x) > 0 {\n\t\tvisitList(s, %q, x, visit%s)\n\t}\n", get, name, goName(fd.Message()))
	case fd.IsList() && name == "mount_flags":
		f("\tif x := %s; len(x) > 0 {\n\t\ts.flags(%q, x)\n\t}\n", get, name)
	case fd.IsList() && fd.Kind() == protoreflect.StringKind:
		f("\tif x := %s; len(x) > 0 {\n\t\ts.texts(%q, x)\n\t}\n", get, name)
	case fd.ContainingOneof() != nil:
		f("\tif x, ok := m.Get%s().(*%s); ok && x != nil {\n\t\ts.open(%q)\n\t\tvisit%s(s, x.%s)\n\t\ts.close()\n\t}\n",
			camel(string(fd.ContainingOneof().Name())), armType(fd), name, goName(fd.Message()), camel(name))
	case fd.Message() != nil:
		f("\tif x := %s; x != nil {\n\t\ts.open(%q)\n\t\tvisit%s(s, x)\n\t\ts.close()\n\t}\n", get, name, goName(fd.Message()))
	case fd.Kind() == protoreflect.StringKind:
		f("\tif x := %s; x != \"\" {\n\t\ts.text(%q, x)\n\t}\n", get, name)
	case fd.Kind() == protoreflect.BoolKind:
		f("\tif %s {\n\t\ts.boolean(%q, true)\n\t}\n", get, name)
	case fd.Kind() == protoreflect.EnumKind:
		f("\tif x := int32(%s); x != 0 {\n\t\ts.enum(%q, x, %s_name[x])\n\t}\n", get, name, goType(fd.Enum()))
	case fd.Kind() == protoreflect.Int32Kind || fd.Kind() == protoreflect.Int64Kind:
		f("\tif x := %s; x != 0 {\n\t\ts.integer(%q, int64(x))\n\t}\n", get, name)
	default:
		panic(fmt.Sprintf("%s: no way to print a %v", fd.FullName(), fd.Kind()))
	}
}
