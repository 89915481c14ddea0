package csispec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const planted = "pl4nted!"

// plant puts secrets into every field of a message that can contain one, and returns their
// number.
func plant(m protoreflect.Message, secret string) (n int) {
	put := func(l protoreflect.Map, k string) {
		l.Set(protoreflect.ValueOfString(k).MapKey(), protoreflect.ValueOfString(secret))
		n++
	}
	fds := m.Descriptor().Fields()
	for i := range fds.Len() {
		fd := fds.Get(i)
		switch {
		case fd.IsMap():
			if proto.GetExtension(fd.Options(), csi.E_CsiSecret).(bool) {
				put(m.Mutable(fd).Map(), "k"+planted)
			} else {
				put(m.Mutable(fd).Map(), tokensKey)
				put(m.Mutable(fd).Map(), "mine")
			}
		case fd.Name() == "mount_flags":
			for _, flag := range []string{"password=", "ro,secret=", "x-y.token:", "cred "} {
				m.Mutable(fd).List().Append(protoreflect.ValueOfString(flag + secret))
				n++
			}
		case fd.Message() == nil || !m.Has(fd):
		case fd.IsList():
			for j := range m.Get(fd).List().Len() {
				n += plant(m.Get(fd).List().Get(j).Message(), secret)
			}
		default:
			n += plant(m.Mutable(fd).Message(), secret)
		}
	}
	return n
}

// FuzzPlantedSecrets searches for secrets in everything that the package prints
// about any message.
func FuzzPlantedSecrets(f *testing.F) {
	all := prototypes()
	for seed := range uint64(200) {
		f.Add(seed, "\"\n,\\")
	}
	f.Fuzz(func(t *testing.T, seed uint64, tail string) {
		r := rand.New(rand.NewPCG(seed, 0))
		m := all[int(seed%uint64(len(all)))].New()
		scribble(r, m)
		secret := planted + tail
		if plant(m, secret) == 0 {
			return
		}
		before := proto.Clone(m.Interface())
		red := Redact(m.Interface(), "mine")
		var b bytes.Buffer
		slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "message", red)
		if !json.Valid(b.Bytes()) {
			t.Errorf("slog: %s", &b)
		}
		slog.New(slog.NewTextHandler(&b, nil)).Info("x", "message", red)
		if s := red.String(); !json.Valid([]byte(s)) {
			t.Errorf("String: %s", s)
		}
		fmt.Fprintln(&b, red, red.RedactText("got "+secret+" and "+fmt.Sprintf("%q", secret)))
		if err := Validate(m.Interface()); err != nil {
			// Also with invalid flags and keys.
			var v *Violations
			if !errors.As(err, &v) {
				t.Fatal(err)
			}
			fmt.Fprintln(&b, err, v.GRPCStatus(), v.All)
		}
		if strings.Contains(b.String(), planted) {
			t.Errorf("leaks: %.4000s", b.String()[max(0, strings.Index(b.String(), planted)-200):])
		}
		if !proto.Equal(before, m.Interface()) {
			t.Error("the message was changed")
		}
	})
}
