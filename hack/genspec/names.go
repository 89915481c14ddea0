package main

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// goName is the name that protoc-gen-go gives a message, an enum or, with its
// parent, an enum value or an arm of a oneof.
func goName(d protoreflect.Descriptor) string {
	if d.ParentFile().Package() == "google.protobuf" {
		return string(d.Name())
	}
	if parent, ok := d.Parent().(protoreflect.MessageDescriptor); ok {
		return goName(parent) + "_" + string(d.Name())
	}
	return string(d.Name())
}

// goType is goName with its package.
func goType(d protoreflect.Descriptor) string {
	if d.ParentFile().Package() == "google.protobuf" {
		switch d.Name() {
		case "Timestamp":
			return "timestamppb.Timestamp"
		default:
			return "wrapperspb." + string(d.Name())
		}
	}
	return "csi." + goName(d)
}

// armType is the name of the Go type that wraps one field of a oneof. It ends in an
// underscore if a nested message has the same name.
func armType(fd protoreflect.FieldDescriptor) string {
	name := camel(string(fd.Name()))
	if fd.ContainingMessage().Messages().ByName(protoreflect.Name(name)) != nil {
		name += "_"
	}
	return "csi." + goName(fd.ContainingMessage()) + "_" + name
}

func camel(s string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(s, "_") {
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}

// method is the name of a function about a message in the package csispec.
func method(d protoreflect.Descriptor) string {
	s := strings.ReplaceAll(goName(d), "_", "")
	return strings.ToLower(s[:1]) + s[1:]
}

func getter(fd protoreflect.FieldDescriptor) string { return "m.Get" + camel(string(fd.Name())) + "()" }
