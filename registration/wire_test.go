package registration

import (
	"slices"
	"testing"

	"google.golang.org/grpc/mem"
)

// FuzzMessages decodes arbitrary input: nothing that kubelet, or another process that
// serves the socket, sends may crash the process.
func FuzzMessages(f *testing.F) {
	f.Add([]byte(pluginInfo{kind: kindCSI, name: "csi.example.com", endpoint: "/csi.sock", versions: []string{"1.0.0", "1.1"}}.marshal()))
	f.Add([]byte("\x08\x01\x12\x02no\x1d1234\x23\x28\x01\x24"))
	f.Add([]byte("\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var info pluginInfo
		var status registrationStatus
		if (info.unmarshal(b) == nil) != (status.unmarshal(b) == nil) {
			t.Error("only one of the messages is well-formed")
		}
		var again pluginInfo
		if err := again.unmarshal(info.marshal()); err != nil || again.name != info.name || again.kind != info.kind ||
			again.endpoint != info.endpoint || !slices.Equal(again.versions, info.versions) {
			t.Errorf("%+v became %+v (%v)", info, again, err)
		}
	})
}

func TestCodecRefuses(t *testing.T) {
	if _, err := (codec{}).Marshal(registrationStatus{}); err == nil {
		t.Error("sent a message that is only received")
	}
	if err := (codec{}).Unmarshal(mem.BufferSlice{}, 1); err == nil {
		t.Error("received into an int")
	}
}

// A field with an unexpected wire type is ignored, as by the protobuf library.
func TestFieldsOfAnotherType(t *testing.T) {
	var info pluginInfo
	if err := info.unmarshal([]byte("\x0a\x01k\x12\x01n\x10\x07\x0d1234\x18\x01\x20\x01")); err != nil || info.kind != "k" || info.name != "n" || info.endpoint != "" || len(info.versions) != 0 {
		t.Errorf("%+v, %v", info, err)
	}
	var s registrationStatus
	if err := s.unmarshal([]byte("\x08\x01\x12\x02ok\x0a\x01x\x0d1234\x10\x01")); err != nil || !s.registered || s.err != "ok" {
		t.Errorf("%+v, %v", s, err)
	}
}
