package main

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// rulesWriter writes csispec/rules_gen.go: a method of walker for every message
// that has rules, which calls csispec's checks for one field after the other.
type rulesWriter struct {
	strings.Builder
	byName map[protoreflect.FullName]*message
}

func (w *rulesWriter) f(format string, args ...any) { fmt.Fprintf(w, format, args...) }

func writeRules(s *spec, sum string) string {
	w := &rulesWriter{byName: map[protoreflect.FullName]*message{}}
	depth := 0
	for _, m := range s.messages {
		w.byName[m.FullName()] = m
	}
	for _, m := range s.messages {
		depth = max(depth, w.depth(m))
	}
	w.f("import (\n\t%q\n\t%q\n)\n\n", specModule+"/lib/go/csi", "google.golang.org/protobuf/proto")
	w.f("// protoSHA256 is the checksum of the csi.proto from which the code below was generated.\nconst protoSHA256 = %q\n\n", sum)
	w.f("// maxDepth is the maximum nesting of messages, without the outermost.\nconst maxDepth = %d\n\n", depth)
	w.enums(s)
	w.f("// root validates any message of CSI.\nfunc (w *walker) root(m proto.Message) {\n\tswitch m := m.(type) {\n")
	for _, m := range s.messages {
		if w.hasRules(m) {
			w.f("\tcase *%s:\n\t\tw.%s(m)\n", goType(m), method(m))
		}
	}
	w.f("\t}\n}\n")
	for _, m := range s.messages {
		if w.hasRules(m) {
			w.message(m)
		}
	}
	return w.String()
}

// enums writes the declared and the alpha values of every enum as sets of bits.
func (w *rulesWriter) enums(s *spec) {
	w.f("// The values of every enum, as bits.\nconst (\n")
	for _, e := range s.enums {
		var all, alpha []string
		for i := range e.Values().Len() {
			v := e.Values().Get(i)
			if v.Number() > 63 {
				panic(fmt.Sprintf("%s does not fit into 64 bits", v.FullName()))
			}
			name := "1<<csi." + goName(enumScope(e)) + "_" + string(v.Name())
			all = append(all, name)
			if option(v, "csi.v1.alpha_enum_value") {
				alpha = append(alpha, name)
			}
		}
		w.f("\t%sValues = %s\n", method(e), strings.Join(all, " |\n\t\t"))
		if alpha == nil {
			alpha = []string{"0"}
		}
		w.f("\t%sAlpha = %s\n", method(e), strings.Join(alpha, " |\n\t\t"))
	}
	w.f(")\n\n")
}

// enumScope is what prefixes the Go names of an enum's values: the message
// around it, or the enum itself at the top.
func enumScope(e protoreflect.EnumDescriptor) protoreflect.Descriptor {
	if m, ok := e.Parent().(protoreflect.MessageDescriptor); ok {
		return m
	}
	return e
}

func (w *rulesWriter) message(m *message) {
	w.f("\nfunc (w *walker) %s(m *%s) {\n", method(m), goType(m))
	if m.alpha {
		w.f("\tif w.refuseAlpha {\n\t\tw.alphaCall()\n\t\treturn\n\t}\n")
	}
	for i := range m.Oneofs().Len() {
		w.oneof(m, m.Oneofs().Get(i))
	}
	for _, f := range m.fields {
		if f.ContainingOneof() == nil {
			w.field(f)
		}
	}
	if m.hand {
		w.f("\tw.%sByHand(m)\n", method(m))
	}
	w.f("}\n")
}

// oneof writes a switch over the fields of a oneof. A plugin can set a nil pointer in a
// response, which is an absent field on the wire.
func (w *rulesWriter) oneof(m *message, od protoreflect.OneofDescriptor) {
	var names []string
	w.f("\tarm := false\n\tswitch x := m.Get%s().(type) {\n", camel(string(od.Name())))
	for _, f := range m.fields {
		if f.ContainingOneof() != od {
			continue
		}
		names = append(names, string(f.Name()))
		w.f("\tcase *%s:\n\t\tarm = x != nil\n", armType(f))
		if f.gate != "" {
			w.f("\t\tif arm && w.absent&%s != 0 {\n\t\t\tw.gated(%q, %s)\n\t\t}\n", f.gate, f.Name(), f.gate)
		}
		if sub := w.byName[f.Message().FullName()]; w.hasRules(sub) {
			w.f("\t\tif arm {\n\t\t\tw.enter(%q)\n\t\t\tw.%s(x.%s)\n\t\t\tw.leave()\n\t\t}\n", f.Name(), method(sub), camel(string(f.Name())))
		}
	}
	w.f("\t}\n\tif !arm {\n\t\tw.missingOneof(%q, %q)\n\t}\n", od.Name(), strings.Join(names, ", "))
}

func (w *rulesWriter) field(f *field) {
	name, get := string(f.Name()), getter(f)
	if f.gate != "" {
		w.f("\tif w.absent&%s != 0 && %s {\n\t\tw.gated(%q, %s)\n\t}\n", f.gate, needsCapability(f), name, f.gate)
	}
	if f.alpha {
		w.f("\tif w.refuseAlpha && %s {\n\t\tw.alphaField(%q)\n\t}\n", isSet(f), name)
	}
	if f.required && (f.IsMap() || f.IsList()) {
		lenient := ""
		if f.lenientEmpty != "" {
			lenient = " && !w." + f.lenientEmpty
		}
		w.f("\tif len(%s) == 0%s {\n\t\tw.missing(%q)\n\t}\n", get, lenient, name)
	}
	switch {
	case f.IsMap() && f.secret:
		w.f("\tw.secretMap(%q, %s)\n", name, get)
	case f.IsMap():
		w.f("\tw.stringMap(%q, %s)\n", name, get)
	case f.total != 0:
		w.f("\tw.total(%q, %s, %d)\n", name, get, f.total)
	case f.Kind() == protoreflect.StringKind && f.IsList():
		w.f("\tw.texts(%q, %s, %s, %s)\n", name, get, limit(f), textRules(f))
	case f.Kind() == protoreflect.StringKind:
		w.f("\tw.text(%q, %s, %s, %s)\n", name, get, limit(f), textRules(f))
	case f.Kind() == protoreflect.EnumKind:
		e := method(f.Enum())
		w.f("\tw.enum(%q, int32(%s), %sValues, %sAlpha, %t)\n", name, get, e, e, f.required)
	case f.Message() != nil:
		w.submessage(f)
	case f.positive:
		w.f("\tw.positive(%q, int64(%s))\n", name, get)
	case f.outOfRange:
		w.f("\tw.offset(%q, int64(%s))\n", name, get)
	case f.nonNegative:
		w.f("\tw.nonNegative(%q, int64(%s))\n", name, get)
	}
}

func (w *rulesWriter) submessage(f *field) {
	name, get := string(f.Name()), getter(f)
	sub := w.byName[f.Message().FullName()]
	switch {
	case f.Message().FullName() == "google.protobuf.Int64Value":
		if f.nonNegative {
			w.f("\tw.nonNegative(%q, %s.GetValue())\n", name, get)
		}
		return
	case f.Message().FullName() == "google.protobuf.Timestamp":
		w.f("\tw.timestamp(%q, %s, %t)\n", name, get, f.required)
		return
	case f.IsList():
		if w.hasRules(sub) {
			w.f("\tfor i, x := range %s {\n\t\tw.enterAt(%q, i)\n\t\tw.%s(x)\n\t\tw.leave()\n\t}\n", get, name, method(sub))
		}
		return
	}
	absent := ""
	if f.required {
		absent = "true"
	} else if f.requiredWith != "" {
		absent = "w.present&" + f.requiredWith + " != 0"
	}
	switch {
	case w.hasRules(sub):
		w.f("\tif x := %s; x != nil {\n\t\tw.enter(%q)\n\t\tw.%s(x)\n\t\tw.leave()\n\t}", get, name, method(sub))
		switch absent {
		case "":
		case "true":
			w.f(" else {\n\t\tw.missing(%q)\n\t}", name)
		default:
			w.f(" else if %s {\n\t\tw.missing(%q)\n\t}", absent, name)
		}
		w.f("\n")
	case absent == "true":
		w.f("\tif %s == nil {\n\t\tw.missing(%q)\n\t}\n", get, name)
	case absent != "":
		w.f("\tif %s && %s == nil {\n\t\tw.missing(%q)\n\t}\n", absent, get, name)
	}
}

func limit(f *field) string {
	switch {
	case f.path:
		return "pathMax"
	case f.max != 0:
		return fmt.Sprint(f.max)
	}
	return "stringMax"
}

func textRules(f *field) string {
	var all []string
	for _, r := range []struct {
		name string
		set  bool
	}{{"required", f.required}, {"absolutePath", f.path}, {"lenientPath", f.lenientPath}, {"noControls", f.noControls}} {
		if r.set {
			all = append(all, r.name)
		}
	}
	if all == nil {
		return "0"
	}
	return strings.Join(all, "|")
}

// needsCapability is the Go expression for a field that only a plugin with its
// capability accepts: isSet, except for topologies without segments, see hasSegments and constrains in
// csispec/hand.go.
func needsCapability(f *field) string {
	if f.Message() != nil && !f.IsList() {
		switch f.Message().FullName() {
		case "csi.v1.Topology":
			return "hasSegments(" + getter(f) + ")"
		case "csi.v1.TopologyRequirement":
			return "constrains(" + getter(f) + ")"
		}
	}
	return isSet(f)
}

// isSet is the Go expression for a field that has another value than its zero.
func isSet(f *field) string {
	get := getter(f)
	switch {
	case f.IsList() || f.IsMap():
		return "len(" + get + ") > 0"
	case f.Message() != nil:
		return get + " != nil"
	case f.Kind() == protoreflect.BoolKind:
		return get
	case f.Kind() == protoreflect.StringKind:
		return get + ` != ""`
	}
	return get + " != 0"
}

// hasRules reports whether a message or one within it has any rule.
func (w *rulesWriter) hasRules(m *message) bool {
	if m == nil {
		return false
	}
	if m.hand || m.alpha || m.Oneofs().Len() > 0 {
		return true
	}
	for _, f := range m.fields {
		switch {
		case f.Kind() == protoreflect.StringKind, f.Kind() == protoreflect.EnumKind, f.IsMap(), // sizes and values
			f.nonNegative, f.positive, f.gate != "", f.alpha, f.requiredWith != "",
			f.required && f.Message() != nil,
			f.Message() != nil && w.hasRules(w.byName[f.Message().FullName()]):
			return true
		}
	}
	return false
}

func (w *rulesWriter) depth(m *message) int {
	d := 0
	for _, f := range m.fields {
		if f.Message() != nil && !f.IsMap() {
			if sub := w.byName[f.Message().FullName()]; sub != nil {
				d = max(d, 1+w.depth(sub))
			}
		}
	}
	return d
}
