package registration

import (
	"slices"
	"testing"

	"google.golang.org/grpc/mem"
)

// FuzzMessages gives what arrives to both decoders: nothing that kubelet, or
// whoever is behind a socket in the way, sends may end the process.
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
