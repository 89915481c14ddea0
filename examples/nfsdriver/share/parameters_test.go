package share

import (
	"slices"
	"strings"
	"testing"

	"github.com/csikit/csikit/examples/nfsdriver/storage"
)

func TestPlanVolume(t *testing.T) {
	metadata := map[string]string{
		"csi.storage.k8s.io/pvc/name": "claim", "csi.storage.k8s.io/pvc/namespace": "team", "csi.storage.k8s.io/pv/name": "pvc-1",
	}
	planned := func(name string, flags []string, pairs ...string) (VolumeRef, Access, error) {
		p := map[string]string{ParamServer: "nas", ParamShare: "/srv"}
		for key, value := range metadata {
			p[key] = value
		}
		for i := 0; i < len(pairs); i += 2 {
			p[pairs[i]] = pairs[i+1]
		}
		own, metadata := storage.SplitKeys(p)
		return plan(name, own, metadata, flags)
	}
	for _, tt := range []struct {
		name  string
		flags []string
		pairs []string
		want  string
	}{
		{"pvc-1", nil, nil, "vol1#nas#/srv#pvc-1#ABCDEFGHIJKLM#delete"},
		{"../etc", nil, nil, "vol1#nas#/srv#vol-" + Digest("../etc") + "#ABCDEFGHIJKLM#delete"},
		{strings.Repeat("n", 128), nil, nil, "vol1#nas#/srv#vol-" + Digest(strings.Repeat("n", 128)) + "#ABCDEFGHIJKLM#delete"},
		{".csikit-nfs", nil, nil, "vol1#nas#/srv#vol-" + Digest(".csikit-nfs") + "#ABCDEFGHIJKLM#delete"},
		{"x", nil, []string{ParamSubDir, "${pvc.metadata.namespace}/${pvc.metadata.name}-${pv.metadata.name}", ParamOnDelete, "archive"}, "vol1#nas#/srv#team/claim-pvc-1#ABCDEFGHIJKLM#archive"},
		{"x", []string{"hard,nfsvers=4.1", "port=2050"}, []string{ParamServer, "[FD00::7]"}, "vol1#fd00::7#/srv#x#ABCDEFGHIJKLM#delete#port=2050,vers=4.1"},
	} {
		r, _, err := planned(tt.name, tt.flags, tt.pairs...)
		r.Nonce = "ABCDEFGHIJKLM"
		if err != nil || r.Encode() != tt.want {
			t.Errorf("%q %q: %q (%v), want %q", tt.name, tt.pairs, r.Encode(), err, tt.want)
		}
	}
	_, a, err := planned("x", nil, ParamPermissions, "2770", ParamOwner, "0", ParamGroup, "4711")
	if err != nil || *a.Permissions != 0o2770 || *a.Owner != 0 || *a.Group != 4711 {
		t.Errorf("access is %+v, %v", a, err)
	}

	for _, tt := range []struct {
		pairs []string
		want  string
	}{
		{[]string{ParamServer, ""}, "server is required"},
		{[]string{ParamShare, ""}, "share is required"},
		{[]string{ParamShare, "srv"}, `share "srv"`},
		{[]string{ParamShare, "/srv/../etc"}, `share "/srv/../etc"`},
		{[]string{ParamServer, "nas;rm"}, `server "nas;rm"`},
		{[]string{"sever", "nas"}, `"sever"`},
		{[]string{ParamOnDelete, "erase"}, `onDelete "erase"`},
		{[]string{ParamPermissions, "0888"}, `mountPermissions "0888"`},
		{[]string{ParamPermissions, "10000"}, `mountPermissions "10000"`},
		{[]string{ParamOwner, "root"}, `owner "root"`},
		{[]string{ParamGroup, "4294967295"}, `group "4294967295"`},
		{[]string{ParamSubDir, "../other"}, "subDir"},
		{[]string{ParamSubDir, "/etc"}, "subDir"},
		{[]string{ParamSubDir, ".csikit-nfs/volumes"}, "are reserved"},
		{[]string{ParamSubDir, "${pvc.metadata.name}/.."}, "subDir"},
		{[]string{ParamSubDir, "${pvc.metadata.label}"}, "unknown variable ${pvc.metadata.label}"},
		{[]string{ParamSubDir, "${pvc.metadata.name"}, "${ without }"},
		{[]string{ParamSubDir, "${pvc.metadata.name}", "csi.storage.k8s.io/pvc/name", ""}, "--extra-create-metadata"},
		{[]string{ParamSubDir, "${pvc.metadata.name}", "csi.storage.k8s.io/pvc/name", ".."}, "not a path component"},
		{[]string{ParamSubDir, "${pvc.metadata.name}", "csi.storage.k8s.io/pvc/name", "a/b"}, "not a path component"},
		{[]string{ParamSubDir, "${pvc.metadata.name}", "csi.storage.k8s.io/pvc/name", "${pv.metadata.name}"}, "not a path component"},
		{[]string{ParamShare, strings.Repeat("/long", 30)}, "CSI allows 128"},
	} {
		if r, _, err := planned("x", nil, tt.pairs...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %+v, %v; want an error with %q", tt.pairs, r, err, tt.want)
		}
	}
}

func TestMountOptions(t *testing.T) {
	for _, tt := range []struct {
		Export     string
		admin      []string
		attributes string
		want       string
	}{
		{"vers=4.1", nil, "", "nosuid,nodev,retry=0,vers=4.1"},
		{"vers=4.1", []string{"hard,timeo=600", "nfsvers=4.1"}, "ro,timeo=600", "nosuid,nodev,retry=0,vers=4.1,hard,timeo=600,ro"},
		{"vers=4.1", []string{"suid", "noexec"}, "", "nosuid,nodev,retry=0,vers=4.1,suid,noexec"}, // the last one counts
		{"vers=4.1", []string{`context="system_u:object_r:t:s0:c1,c2"`}, "", `nosuid,nodev,retry=0,vers=4.1,context="system_u:object_r:t:s0:c1,c2"`},
		{"", []string{"hard"}, "", "nosuid,nodev,retry=0,hard,vers=4"},
		{"", []string{"v4.2", "nfsvers=4.2"}, "hard", "nosuid,nodev,retry=0,vers=4.2,hard"},
		{"vers=3", []string{"v3"}, "nolock", "nosuid,nodev,retry=0,vers=3,nolock"},
	} {
		e := Export{Server: "nas", Share: "/srv", Options: tt.Export}
		got, err := MountOptions(e, tt.admin, tt.attributes)
		if err != nil || strings.Join(got, ",") != tt.want {
			t.Errorf("%q and %q: %q, %v; want %q", tt.admin, tt.attributes, got, err, tt.want)
		}
	}
	e := Export{Server: "nas", Share: "/srv", Options: "vers=4.1"}
	for _, tt := range []struct {
		admin      []string
		attributes string
		want       string
	}{
		{[]string{"vers=3"}, "", "vers=4.1"},
		{[]string{"hard"}, "soft", "hard"},
		{[]string{"ro"}, "rw", "ro"},
		{nil, "lock,nolock", "nolock"},
		{[]string{"addr=10.0.0.1"}, "", "something other than the volume"},
		{[]string{"hard,mounthost=other"}, "", "something other than the volume"},
		{[]string{"source=other:/"}, "", "something other than the volume"},
		{nil, "port=20490", "only an administrator"}, // of another server than the one that is meant
		{nil, "sec=sys", "only an administrator"},
		{nil, "suid", "only an administrator"},
		{nil, "dev", "only an administrator"},
		{nil, "bind", "only an administrator"},
		{nil, "remount,rw", "only an administrator"},
		{nil, "addr=10.0.0.1", "only an administrator"},
		{nil, "context=system_u:object_r:secret:s0", "only an administrator"},
		{nil, "fsc", "only an administrator"},
		{nil, "timeo=6\"00", "only an administrator"},
		{nil, "x-systemd.automount", "only an administrator"},
	} {
		if got, err := MountOptions(e, tt.admin, tt.attributes); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q and %q: %q, %v; want an error with %q", tt.admin, tt.attributes, got, err, tt.want)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("the value is in the error: %v", err)
		}
	}
}

func TestCopyInUseParameter(t *testing.T) {
	for text, want := range map[string]bool{"": false, "false": false, "true": true} {
		got, err := copyInUse(map[string]string{ParamCopyInUse: text})
		if err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if _, err := copyInUse(map[string]string{ParamCopyInUse: "maybe"}); err == nil || !strings.Contains(err.Error(), "want true or false") {
		t.Errorf("maybe: %v", err)
	}
}

func TestShareOf(t *testing.T) {
	const id = "vol1#nas#/srv#pvc-1#ABCDEFGHIJKLM#delete"
	for _, tt := range []struct {
		id, server, share, subDir string
		want                      string // source, or words of the error
	}{
		{id, "", "", "", "nas:/srv/pvc-1"},
		{id, "nas", "/srv", "pvc-1", "nas:/srv/pvc-1"},
		{"by hand", "NAS", "/srv", "", "nas:/srv"},
		{"by hand", "nas", "/", "a/b", "nas:/a/b"},
		{id, "nas", "/srv", "pvc-2", "is not the volume of the ID"},
		{id, "other", "/srv", "pvc-1", "is not the volume of the ID"},
		{"by hand", "", "", "", "attributes must have"},
		{"by hand", "nas", "", "", "share is required"},
		{"by hand", "nas", "/srv", "../x", "subDir"},
		{"by hand", "nas", "/srv", "/x", "subDir"},
		{"by hand", "nas", "/srv", ".csikit-nfs/volumes", "are reserved"},
		{"by hand", "nas -o suid", "/srv", "", "server"},
	} {
		attributes := map[string]string{ParamServer: tt.server, ParamShare: tt.share, ParamSubDir: tt.subDir,
			"csi.storage.k8s.io/ephemeral": "false", "storage.kubernetes.io/csiProvisionerIdentity": "x"}
		own, _ := storage.SplitKeys(attributes)
		r, err := refOf(tt.id, own, nil)
		if err == nil && r.Source(r.SubDir) != tt.want || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %s, %v", tt, r.Source(r.SubDir), err)
		}
	}
	if _, err := refOf(id, map[string]string{"dir": "/etc"}, nil); err == nil {
		t.Error("an unknown attribute is passed over")
	}
}

func TestParseExports(t *testing.T) {
	got, err := ParseExports("nas:/srv/b,port=2050 [fd00::7]:/ nas:/srv/a")
	want := []Export{{"fd00::7", "/", ""}, {"nas", "/srv/a", ""}, {"nas", "/srv/b", "port=2050"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"nas", "nas:srv", "nas:/a/../b", "nas:/a,soft", "nas:/a,port=x y", "nas:/a nas:/a,port=1", ":/a"} {
		if got, err := ParseExports(bad); err == nil {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
}

// The options to reach a server come from the administrator's list, not from the pod.
func TestInlineOptions(t *testing.T) {
	m := &Mounts{Inline: []Export{{"nas", "/srv", "port=2050,sec=krb5p"}}}
	ref, err := m.find(storage.MountRequest{VolumeID: "inline", Context: map[string]string{"server": "nas", "share": "/srv", "subDir": "x"}, Inline: true})
	if err != nil || ref.Options != "port=2050,sec=krb5p" || ref.SubDir != "x" {
		t.Errorf("%+v, %v", ref, err)
	}
}

func TestAddress(t *testing.T) {
	for options, want := range map[string]string{
		"": "nas:2049", "port=2050,vers=4.2": "nas:2050", "vers=3": "nas:111", "proto=udp": "", "proto=rdma": "", "proto=tcp6": "nas:2049",
	} {
		e := Export{"nas", "/", options}
		if got := e.address(); got != want {
			t.Errorf("with %q: %q, want %q", options, got, want)
		}
		if probed := e.Breaker().Probe != nil; probed != (want != "") {
			t.Errorf("with %q: probed: %t", options, probed)
		}
	}
}
