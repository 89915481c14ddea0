package registration

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// The messages of pluginregistration/v1, which has six fields in all and has not
// changed since Kubernetes 1.12. They are written by hand and not generated,
// because generated types register globally by name: a program that also links
// kubelet's package, as a device plugin does, would panic at its start. Nor
// are kubelet's types used, whose module would raise the Kubernetes version of every
// driver that imports this package.

// pluginInfo is the message PluginInfo.
type pluginInfo struct {
	kind, name, endpoint string
	versions             []string
}

func (p pluginInfo) marshal() encoded {
	var b encoded
	text := func(field protowire.Number, s string) {
		b = protowire.AppendTag(b, field, protowire.BytesType)
		b = protowire.AppendString(b, s)
	}
	text(1, p.kind)
	text(2, p.name)
	text(3, p.endpoint)
	for _, v := range p.versions {
		text(4, v)
	}
	return b
}

func (p *pluginInfo) unmarshal(b []byte) error {
	*p = pluginInfo{}
	return fields(b, func(field protowire.Number, value any) {
		text, ok := value.(string)
		switch {
		case !ok:
		case field == 1:
			p.kind = text
		case field == 2:
			p.name = text
		case field == 3:
			p.endpoint = text
		case field == 4:
			p.versions = append(p.versions, text)
		}
	})
}

// registrationStatus is the message RegistrationStatus.
type registrationStatus struct {
	registered bool
	err        string
}

func (s *registrationStatus) unmarshal(b []byte) error {
	*s = registrationStatus{}
	return fields(b, func(field protowire.Number, value any) {
		switch v := value.(type) {
		case uint64:
			if field == 1 {
				s.registered = v != 0
			}
		case string:
			if field == 2 {
				s.err = v
			}
		}
	})
}

// empty is the messages InfoRequest and RegistrationStatusResponse.
type empty struct{}

func (empty) unmarshal([]byte) error { return nil }

// encoded is an encoded message: the response of GetInfo never changes.
type encoded []byte

// fields calls f for each field of a message, with a uint64 if it is a varint, or a
// string. Fields of other wire types, and known fields with an unexpected one, are
// skipped, as protobuf does with unknown fields.
func fields(b []byte, f func(field protowire.Number, value any)) error {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		var value any
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			value, n = protowire.ConsumeString(b)
		default:
			n = protowire.ConsumeFieldValue(field, kind, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		f(field, value)
	}
	return nil
}

// codec is the encoding.CodecV2 of these messages.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case encoded:
		return mem.BufferSlice{mem.SliceBuffer(m)}, nil
	case empty:
		return nil, nil
	}
	return nil, fmt.Errorf("registration: cannot encode %T", v)
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(interface{ unmarshal([]byte) error })
	if !ok {
		return fmt.Errorf("registration: cannot decode into %T", v)
	}
	return m.unmarshal(data.Materialize())
}
