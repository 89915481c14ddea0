package csispec_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

func publish(secret string, flags ...string) *csi.NodePublishVolumeRequest {
	c := mountCapability()
	c.GetMount().MountFlags = flags
	return &csi.NodePublishVolumeRequest{
		VolumeId: "v", TargetPath: "/t", VolumeCapability: c, Readonly: true,
		Secrets:        map[string]string{"password": secret},
		VolumeContext:  map[string]string{tokensKey: secret, "b": "2", "a": "1", "mine": secret},
		PublishContext: map[string]string{"mine": secret},
	}
}

func TestRedactString(t *testing.T) {
	for _, tt := range []struct {
		name string
		m    proto.Message
		want string
	}{
		{"nil", nil, `null`},
		{"nil pointer", (*csi.ProbeRequest)(nil), `null`},
		{"empty", &csi.ProbeRequest{}, `{}`},
		{"request", publish("s3cret", "noatime", "password=s3cret"),
			`{"volume_id":"v","publish_context":{"mine":"***stripped***"},"target_path":"/t",` +
				`"volume_capability":{"mount":{"fs_type":"ext4","mount_flags":["noatime","password=***stripped***"]},"access_mode":{"mode":"SINGLE_NODE_WRITER"}},` +
				`"readonly":true,"secrets":"***stripped***",` +
				`"volume_context":{"a":"1","b":"2","csi.storage.k8s.io/serviceAccount.tokens":"***stripped***","mine":"***stripped***"}}`},
		{"nested and repeated", &csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{
			{Volume: &csi.Volume{VolumeId: "v", CapacityBytes: 5, VolumeContext: map[string]string{"mine": "s3cret"}}}, {},
		}}, `{"entries":[{"volume":{"capacity_bytes":5,"volume_id":"v","volume_context":{"mine":"***stripped***"}}},{}]}`},
		{"block", &csi.NodeStageVolumeRequest{VolumeCapability: blockCapability()},
			`{"volume_capability":{"block":{},"access_mode":{"mode":"MULTI_NODE_MULTI_WRITER"}}}`},
		{"nil arm", &csi.VolumeCapability{AccessType: (*csi.VolumeCapability_Mount)(nil)}, `{}`},
		{"nil in an arm", &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{}}, `{"mount":{}}`},
		{"nil element", &csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{nil}}, `{"entries":[{}]}`},
		{"undeclared enum", &csi.VolumeCapability_AccessMode{Mode: 99}, `{"mode":99}`},
		{"borrowed messages", &csi.GetCapacityResponse{AvailableCapacity: 1, MaximumVolumeSize: wrapperspb.Int64(7)},
			`{"available_capacity":1,"maximum_volume_size":{"value":7}}`},
		{"timestamp", &csi.Snapshot{CreationTime: &timestamppb.Timestamp{Seconds: 3}}, `{"creation_time":{"seconds":3}}`},
		{"odd text", &csi.DeleteVolumeRequest{VolumeId: "a\"\n\x00\u2028\xff"}, `{"volume_id":"a\"\n\u0000\u2028\ufffd"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := csispec.Redact(tt.m, "mine")
			if got := r.String(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if got := fmt.Sprint(r); got != tt.want {
				t.Errorf("fmt: %s", got)
			}
			// slog's JSON carries the same document.
			var b bytes.Buffer
			slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "request", r)
			var line struct{ Request any }
			if err := json.Unmarshal(b.Bytes(), &line); err != nil {
				t.Fatalf("%v: %s", err, b.Bytes())
			}
			got, _ := json.Marshal(line.Request)
			var doc any
			if err := json.Unmarshal([]byte(tt.want), &doc); err != nil {
				t.Fatal(err)
			}
			if want, _ := json.Marshal(doc); !bytes.Equal(got, want) {
				t.Errorf("slog: got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestRedactSlogText(t *testing.T) {
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "request", csispec.Redact(publish("s3cret", "ro", "pass=s3cret"), "mine"))
	for _, want := range []string{
		"request.volume_id=v ", "request.readonly=true ", "request.secrets=***stripped*** ",
		`request.volume_capability.mount.mount_flags="[\"ro\",\"pass=***stripped***\"]"`,
		"request.volume_context.a=1 ",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s: no %s", &b, want)
		}
	}
	if strings.Contains(b.String(), "s3cret") {
		t.Error(&b)
	}
}

func TestRedactIsLazy(t *testing.T) {
	m := &csi.DeleteVolumeRequest{VolumeId: "before"}
	r := csispec.Redact(m)
	m.VolumeId = "after"
	if got, want := r.String(), `{"volume_id":"after"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	keys := []string{"mine"}
	big := publish("s3cret", "noatime")
	if n := testing.AllocsPerRun(100, func() { _ = csispec.Redact(big, keys...) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestRedactMountFlags(t *testing.T) {
	for _, tt := range []struct{ flag, want string }{
		{"noatime", "noatime"},
		{"vers=4.1", "vers=4.1"},
		{"sec=krb5p", "sec=krb5p"},
		{"context=system_u:object_r:x_t", "context=system_u:object_r:x_t"},
		{"uid=0,gid=0", "uid=0,gid=0"},
		{"password=x", "password=***stripped***"},
		{"PassWord=x", "PassWord=***stripped***"},
		{"pass=a,b=c", "pass=***stripped***"},
		{"vers=3.0,passwd=a=b,c", "vers=3.0,passwd=***stripped***"},
		{"password2=x", "password2=***stripped***"},
		{"credentials=/etc/c", "credentials=***stripped***"},
		{"secret=AQ==", "secret=***stripped***"},
		{"-o token=x", "-o token=***stripped***"},
		{"access_key:x", "access_key:***stripped***"},
		{"pwd x", "pwd ***stripped***"},
		{"cred x=y", "cred ***stripped***"},
		{"-o ro password\tx", "-o ro password\t***stripped***"},
		{"password=", "password="},
		{"user=me%x", "user=***stripped***"},
		{"user=me", "user=***stripped***"},
		{"vers=3.0,username=me,password=x", "vers=3.0,username=***stripped***,password=***stripped***"},
		{"-o user=me,ro", "-o user=***stripped***,ro"},
		{"user_xattr", "user_xattr"},
		{"user", "user"},
		{"url=https://me:x@host/p", "url=https://***stripped***@host/p"},
		{"url=https://me:x@host/p,token=y", "url=https://***stripped***@host/p,token=***stripped***"},
		{"url=https://host/p", "url=https://host/p"},
		{"-o=password=x", "-o=password=***stripped***"},
		{"--options=ro:password=x", "--options=ro:password=***stripped***"},
		{"data=password=x", "data=password=***stripped***"},
		{"data=user=me,ro", "data=user=***stripped***,ro"},
		{"//me:x@host/share", "//***stripped***@host/share"},
		{"sv=2024,sig=x", "sv=2024,sig=***stripped***"},
		{"sas=x", "sas=***stripped***"},
		{"auth=x", "auth=***stripped***"},
		{"pw=x", "pw=***stripped***"},
		{"lowerdir=/a:/b,upperdir=/c", "lowerdir=/a:/b,upperdir=/c"},
		{"", ""},
	} {
		m := &csi.VolumeCapability_MountVolume{MountFlags: []string{tt.flag}}
		want, _ := json.Marshal(tt.want)
		if got := csispec.Redact(m).String(); got != `{"mount_flags":[`+string(want)+`]}` {
			t.Errorf("redact %q: got %s, want %s", tt.flag, got, want)
		}
	}
}

// Programs accept an option and its value as separate elements, as in
// mount -t fuse.x -- --secret-key abc.
func TestRedactSplitMountFlags(t *testing.T) {
	m := publish("s3cret", "--secret-key", "abcdef", "noatime", "-password", "--ro", "--key=x", "y", "keyed", "z")
	const want = `["--secret-key","***stripped***","noatime","-password","***stripped***","--key=***stripped***","y","keyed","z"]`
	var b bytes.Buffer
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "message", csispec.Redact(m))
	for _, got := range []string{csispec.Redact(m).String(), b.String()} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := csispec.Redact(m).RedactText("no key abcdef, y"); got != "no key ***stripped***, y" {
		t.Error(got)
	}
}

// A user name is not masked in other text: it may be any word of it.
func TestRedactTextKeepsUserNames(t *testing.T) {
	m := publish("s3cret", "username=data,password=hunter2", "user=root%toor")
	if got, want := csispec.Redact(m).RedactText("no /data for root by hunter2, toor"), "no /data for root by ***stripped***, ***stripped***"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRedactText(t *testing.T) {
	pem := "-----BEGIN KEY-----\nabc/def+123\n-----END KEY-----\n"
	m := publish(pem, "noatime", "password=hunter2,x")
	m.Secrets["short"] = "abc"
	m.Secrets["user"] = "overlap"
	m.Secrets["pass"] = "lapping"
	m.VolumeContext[tokensKey] = `{"aud":{"token":"eyJhbGciOi"}}`
	r := csispec.Redact(m, "mine")
	for _, tt := range []struct{ text, want string }{
		{"", ""},
		{"nothing here, abc", "nothing here, abc"},
		{"mount: " + pem + "!", "mount: ***stripped***!"},
		{fmt.Sprintf("bad key %q", pem), `bad key "***stripped***"`},
		{"line abc/def+123.", "line ***stripped***."},
		{"get https://u:" + url.QueryEscape("abc/def+123") + "@h", "get https://u:***stripped***@h"},
		{"cifs: hunter2 refused", "cifs: ***stripped*** refused"},
		{"token eyJhbGciOi expired", "token ***stripped*** expired"},
		{"overlapping, overlap and lapping", "***stripped***, ***stripped*** and ***stripped***"},
		{"noatime is fine for /t and v", "noatime is fine for /t and v"},
	} {
		if got := r.RedactText(tt.text); got != tt.want {
			t.Errorf("strip %q: got %q, want %q", tt.text, got, tt.want)
		}
	}
	if got := csispec.Redact(nil).RedactText("x"); got != "x" {
		t.Errorf("nil message: %q", got)
	}
}

// TestRedactEverySecretField compares with the descriptor, so that a secret
// field of a later version of CSI cannot be missed.
func TestRedactEverySecretField(t *testing.T) {
	n := 0
	for _, m := range good() {
		r := proto.Clone(m).ProtoReflect()
		fs := r.Descriptor().Fields()
		for i := range fs.Len() {
			fd := fs.Get(i)
			if !proto.GetExtension(fd.Options(), csi.E_CsiSecret).(bool) {
				continue
			}
			n++
			r.Mutable(fd).Map().Set(protoreflect.ValueOfString("k3y").MapKey(), protoreflect.ValueOfString("pl4nted"))
			if s := csispec.Redact(r.Interface()).String(); strings.Contains(s, "pl4nted") || strings.Contains(s, "k3y") {
				t.Errorf("%s: %s", fd.FullName(), s)
			}
		}
	}
	if n != 22 {
		t.Errorf("%d secret fields, want 22", n)
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("", "noatime,", "password=", "key")
	f.Add("\n\"\\", "a=b,", "secret:", "")
	f.Add("a,b=c@d", "", "x=https://", "password")
	f.Fuzz(func(t *testing.T, tail, before, option, key string) {
		const planted = "pl4nted!"
		secret := planted + tail
		if strings.Contains(before+option+key, planted) {
			return
		}
		m := publish(secret)
		if key != "a" && key != "b" {
			m.VolumeContext[key] = secret
		}
		// A known option after arbitrary text.
		m.VolumeCapability.GetMount().MountFlags = []string{before + "," + "password=" + secret, option + "," + "token=" + secret}
		r := csispec.Redact(m, "mine", key)
		var b bytes.Buffer
		slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "request", r)
		if !json.Valid(b.Bytes()) {
			t.Errorf("slog: %s", &b)
		}
		slog.New(slog.NewTextHandler(&b, nil)).Info("x", "request", r)
		s := r.String()
		if !json.Valid([]byte(s)) || s != r.String() {
			t.Errorf("not one valid document: %s", s)
		}
		b.WriteString(s)
		b.WriteString(r.RedactText("echo " + secret + "; " + fmt.Sprintf("%q", secret)))
		if strings.Contains(b.String(), planted) {
			t.Errorf("leaks: %s", &b)
		}
	})
}
