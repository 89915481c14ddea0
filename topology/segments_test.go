package topology_test

import (
	"flag"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/topology"
)

const (
	zone = "topology.example.com/zone"
	rack = "topology.example.com/rack"
	host = "topology.example.com/host"
)

// segs parses segments without the prefix: segs("zone=z1").
func segs(text string) topology.Segments {
	s := topology.Segments{}
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' }) {
		key, value, _ := strings.Cut(part, "=")
		s["topology.example.com/"+key] = value
	}
	return s
}

func TestParse(t *testing.T) {
	long := strings.Repeat("a", 63)
	tests := []struct {
		name, text string
		want       topology.Segments
		wrong      string // a part of the error
	}{
		{"nothing", "", nil, ""},
		{"white space", " ", nil, ""},
		{"one", zone + "=z1", topology.Segments{zone: "z1"}, ""},
		{"two", zone + "=z1," + rack + "=R_3.a", topology.Segments{zone: "z1", rack: "R_3.a"}, ""},
		{"spaces around commas", " " + zone + "=z1 , " + rack + "=r3 ", topology.Segments{zone: "z1", rack: "r3"}, ""},
		{"no prefix", "zone=z1", topology.Segments{"zone": "z1"}, ""},
		{"with and without prefix", "zone=z1," + rack + "=r", topology.Segments{"zone": "z1", rack: "r"}, ""},
		{"the longest", long + "/" + long + "=" + long, topology.Segments{long + "/" + long: long}, ""},
		{"digits", "0.example/0=0", topology.Segments{"0.example/0": "0"}, ""},

		{"no value", zone, nil, "is not key=value"},
		{"a comma too many", zone + "=z1,", nil, "is not key=value"},
		{"empty value", zone + "=", nil, `has the value ""`},
		{"empty key", "=z1", nil, `"" is not a topology key`},
		{"two signs", zone + "=z=1", nil, `has the value "z=1"`},
		{"twice", zone + "=z1," + zone + "=z1", nil, "duplicate key"},
		{"case", "Zone=z1,zone=z1", nil, "in case only"},
		{"case behind the prefix", "a.b/Zone=z1,a.b/zone=z1", nil, "in case only"},
		{"two prefixes", "a.example/zone=z1,b.example/rack=r", nil, `the prefix of "b.example/rack" is not "a.example"`},
		{"prefix in upper case", "Example.com/zone=z1", nil, "is not a topology key"},
		{"empty prefix", "/zone=z1", nil, "is not a topology key"},
		{"empty name", "example.com/=z1", nil, "is not a topology key"},
		{"two slashes", "a/b/c=z1", nil, "is not a topology key"},
		{"empty label", "a..b/c=z1", nil, "is not a topology key"},
		{"dash at the end", "a-/c=z1", nil, "is not a topology key"},
		{"underscore in the prefix", "a_b/c=z1", nil, "is not a topology key"},
		{"name ends in a dash", "zone-=z1", nil, "is not a topology key"},
		{"value begins with a dot", "zone=.z1", nil, "has the value"},
		{"a name too long", long + "a=z", nil, "is not a topology key"},
		{"a prefix too long", long + "a/zone=z", nil, "is not a topology key"},
		{"a value too long", "zone=" + long + "a", nil, "has the value"},
		{"not ASCII", "zone=zürich", nil, "has the value"},
		{"inner space", "zone=z 1", nil, "has the value"},
		{"all errors", "-=z1,zone=-", nil, `"zone" has the value "-"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := topology.Parse(tt.text)
			if tt.wrong != "" {
				if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), tt.wrong) {
					t.Errorf("err = %v, want INVALID_ARGUMENT with %q", err, tt.wrong)
				}
				return
			}
			if err != nil || !got.Equal(tt.want) {
				t.Errorf("got %v, %v, want %v", got, err, tt.want)
			}
		})
	}
	t.Run("more than 4 KiB", func(t *testing.T) {
		var parts []string
		for i := range 39 {
			parts = append(parts, strings.Repeat("k", 20+i)+"="+long)
		}
		if _, err := topology.Parse(strings.Join(parts, ",")); err != nil {
			t.Errorf("3 978 bytes: %v", err)
		}
		parts = append(parts, long+"="+long)
		if _, err := topology.Parse(strings.Join(parts, ",")); err == nil || !strings.Contains(err.Error(), "the limit is 4096") {
			t.Errorf("4 104 bytes: %v", err)
		}
	})
}

func TestValidateAcrossSets(t *testing.T) {
	if err := topology.Validate(segs("zone=z1"), nil, topology.Segments{"plain": "x"}, segs("rack=r1")); err != nil {
		t.Error(err)
	}
	err := topology.Validate(segs("zone=z1"), topology.Segments{"other.example/zone": "z1"})
	if err == nil || !strings.Contains(err.Error(), "a plugin must use a single prefix") {
		t.Errorf("err = %v, want one about the prefix", err)
	}
}

func TestFromLabels(t *testing.T) {
	labels := map[string]string{
		"topology.kubernetes.io/zone": "z1", "kubernetes.io/hostname": "n1", "secret": "s", zone: "own", "bad": "",
	}
	tests := []struct {
		name  string
		allow []string
		want  topology.Segments
		wrong string
	}{
		{"nothing is allowed", nil, nil, ""},
		{"one", []string{zone}, topology.Segments{zone: "own"}, ""},
		{"under another key", []string{zone + "=topology.kubernetes.io/zone", host + "=kubernetes.io/hostname"},
			topology.Segments{zone: "z1", host: "n1"}, ""},
		{"missing", []string{"secret", zone + "=x", "y"}, nil, `has no label "x", "y"`},
		{"twice", []string{zone, zone + "=secret"}, nil, "duplicate key"},
		{"empty", []string{"bad"}, nil, `has the value ""`},
		{"two prefixes", []string{zone, "kubernetes.io/hostname"}, nil, "single prefix"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := topology.FromLabels(labels, tt.allow...)
			if tt.wrong != "" {
				if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), tt.wrong) {
					t.Errorf("err = %v, want INVALID_ARGUMENT with %q", err, tt.wrong)
				}
			} else if err != nil || !got.Equal(tt.want) {
				t.Errorf("got %v, %v, want %v", got, err, tt.want)
			}
		})
	}
}

func TestFlag(t *testing.T) {
	parse := func(args ...string) (topology.Segments, error) {
		var s topology.Segments
		flags := flag.NewFlagSet("", flag.ContinueOnError)
		flags.SetOutput(io.Discard)
		flags.Var(&s, "topology", "")
		flags.PrintDefaults() // calls String of a zero value
		return s, flags.Parse(args)
	}
	for _, args := range [][]string{
		{"-topology", zone + "=z1", "-topology", zone + "=z2"},
		{"-topology", zone + "=z1", "-topology", "other.example/rack=r"},
		{"-topology", "nothing"},
	} {
		if _, err := parse(args...); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
	var s topology.Segments
	for _, text := range []string{zone + "=z1", "", rack + "=r1"} {
		if err := s.Set(text); err != nil {
			t.Fatal(err)
		}
	}
	before := s
	if err := s.Set(zone + "=z2"); err == nil || !before.Equal(s) || !s.Equal(segs("zone=z1,rack=r1")) {
		t.Errorf("Set of an existing key: %v, and leaves %v", err, s)
	}
}

func TestEqualMatchesString(t *testing.T) {
	upper := topology.Segments{"topology.example.com/ZONE": "z1"}
	tests := []struct {
		name                        string
		a, b                        topology.Segments
		equal, aMatchesB, bMatchesA bool
	}{
		{"nothing", nil, topology.Segments{}, true, true, true},
		{"the same", segs("zone=z1,rack=r1"), segs("rack=r1,zone=z1"), true, true, true},
		{"case of a key", segs("zone=z1"), upper, true, true, true},
		{"case of a value", segs("zone=z1"), segs("zone=Z1"), false, false, false},
		{"everywhere", segs("zone=z1"), nil, false, true, false},
		{"a part", segs("zone=z1,rack=r1"), segs("zone=z1"), false, true, false},
		{"a part, by its last key", segs("host=h,zone=z1"), segs("zone=z1"), false, true, false},
		{"another value", segs("zone=z1,rack=r1"), segs("zone=z2"), false, false, false},
		{"another key", segs("zone=z1"), segs("rack=z1"), false, false, false},
		{"some in common", segs("zone=z1,rack=r1"), segs("zone=z1,host=h"), false, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.a.Equal(tt.b); got != tt.equal || got != tt.b.Equal(tt.a) {
				t.Errorf("Equal = %v, want %v", got, tt.equal)
			}
			if same := tt.a.String() == tt.b.String(); same != tt.equal {
				t.Errorf("the texts are %q and %q", tt.a, tt.b)
			}
			if got := tt.a.Matches(tt.b); got != tt.aMatchesB {
				t.Errorf("a matches b = %v, want %v", got, tt.aMatchesB)
			}
			if got := tt.b.Matches(tt.a); got != tt.bMatchesA {
				t.Errorf("b matches a = %v, want %v", got, tt.bMatchesA)
			}
		})
	}
	if got, want := segs("zone=z1,rack=R1").String(), rack+"=R1,"+zone+"=z1"; got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
}

func TestTopologyMessage(t *testing.T) {
	s := segs("zone=z1")
	m := s.Topology()
	if !topology.FromTopology(m).Equal(s) {
		t.Errorf("FromTopology(Topology) = %v, want %v", topology.FromTopology(m), s)
	}
	m.Segments[zone] = "changed"
	if s[zone] != "z1" {
		t.Error("the message shares the map")
	}
	if (topology.Segments{}).Topology() != nil || topology.FromTopology(nil) != nil {
		t.Error("no segments are not nil")
	}
}

// Parse and package csispec accept the same segments, and String round-trips.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"", zone + "=z1", zone + "=z1," + rack + "=r1", "Zone=z1,zone=z2", "a/b/c=d", "=", ",", "a=b=c", " a=b , c=d", "a..b/c=d", "0/0=0", "é=é"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := topology.Parse(text)
		if err != nil {
			if status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(err.Error(), "parse topology: ") && !strings.HasPrefix(err.Error(), "check topology: ") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if m := s.Topology(); m != nil {
			if err := csispec.Validate(m); err != nil {
				t.Errorf("%q: %v", text, err)
			}
		}
		again, err := topology.Parse(s.String())
		if err != nil || !again.Equal(s) || again.String() != s.String() {
			t.Errorf("%q: String %q is parsed as %v, %v", text, s, again, err)
		}
	})
}
