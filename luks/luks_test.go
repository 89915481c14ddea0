package luks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/csikit/csikit/csierr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestNames(t *testing.T) {
	ids := []string{
		"pvc-0b0b6b0e-0c64-4c8e-9d43-6ad0f4e6a1a5", ".", "..", "a", "A", "a/b", "a b", "a\nb", "a\x00b", "ü",
		strings.Repeat("x", 47), strings.Repeat("x", 48), strings.Repeat("x", 79), strings.Repeat("x", 80), strings.Repeat("x", 127), strings.Repeat("x", 4096),
		"sha256:" + strings.Repeat("0", 64), "a\\x2fb", safe("a/b", 79), safe("a/b", 47),
	}
	for _, prefix := range []string{"d", strings.Repeat("p", 47)} {
		names, labels := map[string]string{}, map[string]string{}
		for _, id := range ids {
			name, label := nameOf(prefix, id), labelOf(id)
			if len(name) > 127 || strings.ContainsAny(name, "/\\ \n\x00") || !strings.HasPrefix(name, prefix+"-") {
				t.Errorf("%q: name %q", id, name)
			}
			if len(label) > 47 || strings.ContainsAny(label, "/\\ \n\x00") {
				t.Errorf("%q: label %q", id, label)
			}
			if other, taken := names[name]; taken {
				t.Errorf("%q and %q have the name %s", id, other, name)
			}
			if other, taken := labels[label]; taken {
				t.Errorf("%q and %q have the label %s", id, other, label)
			}
			names[name], labels[label] = id, id
		}
	}
	if got := nameOf("block.csikit.dev", ids[0]); got != "block.csikit.dev-"+ids[0] {
		t.Errorf("the name of most volumes is %q", got)
	}
	// The names of volumes that are open, and the labels on disks, outlive this version.
	if got := labelOf("a/b"); got != "sha256:c14cddc033f64b9dea80ea675cf280a015e67251" {
		t.Errorf("label %q", got)
	}
}

func TestNew(t *testing.T) {
	for _, prefix := range []string{"", "a/b", "a b", strings.Repeat("x", 48), "a:b"} {
		if _, err := New(Config{Prefix: prefix}); err == nil {
			t.Errorf("prefix %q is accepted", prefix)
		}
	}
}

func TestPassphraseIsHidden(t *testing.T) {
	secret := Passphrase("correct horse")
	for _, v := range []any{OpenRequest{Passphrase: secret}, &OpenRequest{Passphrase: secret}, ChangeRequest{Old: secret, New: secret}, secret, &secret, []Passphrase{secret}} {
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v)
		text, err := json.Marshal(v)
		ok(t, err)
		all := log.String() + string(text)
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%X", "%q", "%d"} {
			all += fmt.Sprintf(verb, v)
		}
		for _, form := range []string{"correct", fmt.Sprintf("%x", []byte(secret)), fmt.Sprintf("%X", []byte(secret)), "[99 111 114", "Y29ycmVjd"} {
			if strings.Contains(all, form) {
				t.Errorf("%T prints as %s", v, all)
			}
		}
	}
}

func TestError(t *testing.T) {
	err := error(&Error{"open", "v", fmt.Errorf("x: %w", kindf(csierr.Unauthenticated, "y: %w", errDamaged))})
	if status.Code(err) != codes.Unauthenticated || csierr.CodeOf(err) != codes.Unauthenticated || !errors.Is(err, errDamaged) || !csierr.IsFinal(err) {
		t.Error(err, status.Code(err))
	}
	if err := (&Error{"find", "v", ErrNotOpen}); csierr.CodeOf(err) != codes.NotFound {
		t.Error(err)
	}
}

func TestInvalid(t *testing.T) {
	m, err := New(Config{Prefix: "test"})
	ok(t, err)
	_, noPassphrase := m.Open(t.Context(), OpenRequest{VolumeID: "v", Device: "/dev/null"})
	_, noID := m.Open(t.Context(), OpenRequest{Device: "/dev/null", Passphrase: Passphrase("x")})
	for _, err := range []error{noPassphrase, noID, m.Close(t.Context(), "")} {
		if csierr.CodeOf(err) != codes.InvalidArgument {
			t.Error(err)
		}
	}
}

func FuzzHeader(f *testing.F) {
	f.Add([]byte(firstMagic+"\x00\x02"), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, at int64) {
		image := make([]byte, 5<<20)
		copy(image[max(0, min(at, int64(len(image)))):], b)
		if h, err := readHeader(bytes.NewReader(image)); err == nil && len(b) < 16<<10 {
			t.Errorf("a header without a valid sum is accepted: %+v", h)
		}
	})
}
