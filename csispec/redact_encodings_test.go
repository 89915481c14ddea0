package csispec_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"google.golang.org/protobuf/encoding/prototext"
)

// An echo is a way in which an error may show a secret of its request.
type echo struct {
	name string
	of   func(secret string) string
}

func lower(s string) string {
	return regexp.MustCompile(`%[0-9A-F]{2}`).ReplaceAllStringFunc(s, strings.ToLower)
}

func inJSON(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func inPrototext(s string) string {
	return prototext.Format(&csi.NodePublishVolumeRequest{Secrets: map[string]string{"password": s}})
}

var echoes = []echo{
	{"verbatim", func(s string) string { return s }},
	{"%q", strconv.Quote},
	{"%+q", strconv.QuoteToASCII},
	{"a map", func(s string) string { return fmt.Sprintf("%#v", map[string]string{"password": s}) }},
	{"JSON", inJSON},
	{"JSON with ASCII only", func(s string) string {
		var b strings.Builder
		for _, u := range s {
			switch {
			case u > 0xffff:
				fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+(u-0x10000)>>10, 0xdc00+(u-0x10000)&0x3ff)
			case u < ' ' || u > '~' || u == '"' || u == '\\':
				fmt.Fprintf(&b, `\u%04x`, u)
			case u == '/':
				b.WriteString(`\/`)
			default:
				b.WriteRune(u)
			}
		}
		return `"` + b.String() + `"`
	}},
	{"octal", func(s string) string {
		var b strings.Builder
		for i := range len(s) {
			if c := s[i]; c == 'Q' {
				b.WriteByte(c)
			} else {
				fmt.Fprintf(&b, `\%03o`, c)
			}
		}
		return b.String()
	}},
	{"prototext", inPrototext},
	{"quoted twice", func(s string) string { return strconv.Quote(strconv.Quote(s)) }},
	{"quoted three times", func(s string) string { return inJSON(strconv.Quote(inJSON(s))) }},
	{"JSON of prototext", func(s string) string { return inJSON(inPrototext(s)) }},
	{"query", url.QueryEscape},
	{"query in lower case", func(s string) string { return lower(url.QueryEscape(s)) }},
	{"path", url.PathEscape},
	{"path in lower case", func(s string) string { return lower(url.PathEscape(s)) }},
	{"URL", func(s string) string {
		return (&url.URL{Scheme: "https", Host: "h", User: url.UserPassword("me", s)}).String()
	}},
	{"URL in JSON", func(s string) string {
		return inJSON((&url.URL{Scheme: "https", Host: "h", User: url.UserPassword("me", s)}).String())
	}},
	{"JSON in a query", func(s string) string { return lower(url.QueryEscape(inJSON(s))) }},
	{"query twice", func(s string) string { return url.QueryEscape(url.QueryEscape(s)) }},
}

// awkward are secrets in which every encoding changes something. What follows planted
// is part of the secret, too.
var awkward = []string{
	`pl4nted$&+,/:;=?@x`,
	`pl4nted "quoted" 'too' \back\slash`,
	"pl4nted\a\b\t\v\x1b",
	"pl4nted-grüße-\u2028-\U0001F600-<&>",
	`pl4nted%41%2f+x y`,
	`pl4nted\n\u0041\x41\101`,
}

// Every secret is masked to its last byte in every encoding.
func TestRedactTextEncodings(t *testing.T) {
	for _, secret := range awkward {
		m := &csi.NodePublishVolumeRequest{VolumeId: "v", Secrets: map[string]string{"password": secret}}
		r := csispec.Redact(m)
		for _, e := range echoes {
			// The text around it shows that not more is masked than the secret.
			plain := e.of("Q")
			want := "before " + strings.Replace(plain, "Q", "***stripped***", 1) + " after"
			got := r.RedactText("before " + strings.Replace(e.of("Q"+secret+"Q"), "Q", "", 2) + " after")
			// A byte order or the spaces of prototext differ between runs.
			if spaces := regexp.MustCompile(` +`); spaces.ReplaceAllString(got, " ") != spaces.ReplaceAllString(want, " ") {
				t.Errorf("%s of %q:\ngot  %s\nwant %s", e.name, secret, got, want)
			}
		}
	}
}

// A value of a configuration file is a secret, too: a keyring is echoed by its key.
func TestRedactTextOfConfigurationFiles(t *testing.T) {
	for _, secret := range []string{
		"[client.admin]\n\tkey = AQBkeypl4nted==\n\tcaps mon = \"allow r\"\n",
		"user: me\r\npassword: 'AQBkeypl4nted=='\r\n",
		`{"auths":{"h":{"auth":"AQBkeypl4nted=="}}}`,
		"{\"k\":\"-----BEGIN-----\\nAQBkeypl4nted==\\n-----END-----\\n\"}",
	} {
		m := &csi.NodeStageVolumeRequest{Secrets: map[string]string{"keyring": secret}}
		if got := csispec.Redact(m).RedactText("mount: secret=AQBkeypl4nted== refused"); got != "mount: secret=***stripped*** refused" {
			t.Errorf("%q: %s", secret, got)
		}
	}
}

// A secret at the end of a text that is too long may be there in part.
func TestRedactTextTruncated(t *testing.T) {
	const secret = `pl4nted "and" its tail`
	r := csispec.Redact(&csi.NodeStageVolumeRequest{Secrets: map[string]string{"password": secret}})
	for _, echoed := range []string{secret, strconv.Quote(secret), lower(url.QueryEscape(secret)), strconv.Quote(strconv.Quote(secret))} {
		for seen := range len(echoed) {
			text := strings.Repeat("x", 64<<10-seen) + echoed + strings.Repeat("y", 1000)
			got := r.RedactText(text)
			if strings.Contains(got, "pl") || len(got) > 64<<10+100 {
				t.Fatalf("%d bytes of %s: %d bytes that end in %s", seen, echoed, len(got), got[64<<10-100:])
			}
		}
	}
}

// Time and memory do not grow with what a client sends. Time is bounded by the size of the
// text, 64 KiB, and of the automaton, 256 Ki nodes, which the allocations show.
func TestRedactTextIsBounded(t *testing.T) {
	var lines strings.Builder
	for i := 0; lines.Len() < 4000; i++ {
		fmt.Fprintf(&lines, "%04x\n", i*7919%65536)
	}
	var distinct strings.Builder
	for i := 0; distinct.Len() < 4<<20; i++ {
		fmt.Fprintf(&distinct, "%08x\n", i*7919)
	}
	var nested strings.Builder
	for i := 4; nested.Len() < 4000; i++ {
		nested.WriteString(strings.Repeat("a", i) + "b\n")
	}
	for _, tt := range []struct {
		name, secret, text string
		most               uint64 // bytes allocated
	}{
		{"a legal secret of many lines", lines.String(), strings.Repeat("0123 4567\n", 26<<10), 8 << 20},
		{"nested lines", nested.String(), strings.Repeat("a", 256<<10), 8 << 20},
		{"nested lines and escapes", nested.String(), strings.Repeat(`a\\\\%2525`, 32<<10), 16 << 20},
		{"4 MiB in lines", distinct.String(), "open /dev/x: no such file", 80 << 20},
		{"4 MiB in one line", strings.Repeat("p", 4<<20), "open /dev/x: no such file", 1 << 20},
		{"4 MiB of JSON", "[" + strings.Repeat(`"abcd",`, 600<<10) + `"x"]`, "open /dev/x: no such file", 1 << 20},
	} {
		r := csispec.Redact(&csi.NodeStageVolumeRequest{Secrets: map[string]string{"k": tt.secret}})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := r.RedactText(tt.text)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > tt.most {
			t.Errorf("%s: %d MiB allocated, want at most %d", tt.name, n>>20, tt.most>>20)
		}
		if len(got) > 64<<10+100 {
			t.Errorf("%s: %d bytes", tt.name, len(got))
		}
	}
}

// BenchmarkRedactText has what an error costs, by the size of secret and text.
func BenchmarkRedactText(b *testing.B) {
	for _, secret := range []int{16, 4 << 10, 256 << 10, 4 << 20} {
		for _, text := range []int{200, 64 << 10} {
			var lines strings.Builder
			for i := 0; lines.Len() < secret; i++ {
				fmt.Fprintf(&lines, "%015x\n", i*7919)
			}
			r := csispec.Redact(&csi.NodeStageVolumeRequest{Secrets: map[string]string{"k": lines.String()}})
			long := strings.Repeat(`open "\/dev%2fx": `, text/16)[:text]
			b.Run(fmt.Sprintf("secret=%d/text=%d", secret, text), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					_ = r.RedactText(long)
				}
			})
		}
	}
}

// The secrets are those at the time of Take.
func TestSecretsAreTakenOnce(t *testing.T) {
	m := publish("hunter22", "password=flagged")
	var s csispec.Secrets
	keys := []string{"mine"}
	s.Take(m, keys...)
	clear(m.Secrets)
	clear(m.VolumeContext)
	m.VolumeCapability.GetMount().MountFlags[0] = ""
	if got, want := s.RedactText("hunter22 flagged"), "***stripped*** ***stripped***"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := testing.AllocsPerRun(100, func() { s.Take(m, keys...) }); n != 0 {
		t.Errorf("Take: %v allocations", n)
	}
	s.Take(nil)
	if got := s.RedactText("hunter22"); got != "hunter22" {
		t.Errorf("after another Take: %q", got)
	}
}
