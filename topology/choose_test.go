package topology_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csikit/csikit/topology"
)

const gib = 1 << 30

// terms parses "zone=z1 zone=z2".
func terms(text string) (list []*csi.Topology) {
	for _, term := range strings.Fields(text) {
		list = append(list, &csi.Topology{Segments: segs(term)})
	}
	return list
}

func requirement(requisite, preferred string) *csi.TopologyRequirement {
	return &csi.TopologyRequirement{Requisite: terms(requisite), Preferred: terms(preferred)}
}

// pools parses "name:segments:GiB name:segments:GiB:GiB of the largest volume".
func pools(text string) (list []topology.Candidate) {
	for _, pool := range strings.Fields(text) {
		parts := strings.Split(pool, ":")
		c := topology.Candidate{Name: parts[0], Segments: segs(parts[1])}
		_, _ = fmt.Sscan(parts[2], &c.Free)
		if len(parts) > 3 {
			_, _ = fmt.Sscan(parts[3], &c.MaxVolume)
		}
		c.Free *= gib
		c.MaxVolume *= gib
		list = append(list, c)
	}
	return list
}

func names(chosen []topology.Candidate) string {
	var list []string
	for _, c := range chosen {
		list = append(list, c.Name)
	}
	return strings.Join(list, " ")
}

type chooseCase struct {
	name string
	req  *csi.TopologyRequirement
	size int64 // GiB
	from string
	opts []topology.Option
	want string
	code codes.Code
	text string // a part of the error
}

func runChoose(t *testing.T, tests []chooseCase) {
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			chosen, err := topology.Choose(tt.req, tt.size*gib, pools(tt.from), tt.opts...)
			if got := names(chosen); got != tt.want || status.Code(err) != tt.code {
				t.Fatalf("Choose = %q, %v, want %q, %v", got, err, tt.want, tt.code)
			}
			if tt.code != codes.OK && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("text  %v\nwants %s", err, tt.text)
			}
		})
	}
}

// The examples in the comments of the specification.
func TestChooseSpecification(t *testing.T) {
	const (
		zones = "2:region=R1,zone=Z2:9 3:region=R1,zone=Z3:9 4:region=R1,zone=Z4:9 5:region=R1,zone=Z5:9"
		z2    = "region=R1,zone=Z2"
		z23   = "region=R1,zone=Z2 region=R1,zone=Z3"
		z234  = z23 + " region=R1,zone=Z4"
		z2345 = z234 + " region=R1,zone=Z5"
		no3   = "2:region=R1,zone=Z2:9 4:region=R1,zone=Z4:9 5:region=R1,zone=Z5:9"
		no5   = "2:region=R1,zone=Z2:9 3:region=R1,zone=Z3:9 4:region=R1,zone=Z4:9"
		no35  = "2:region=R1,zone=Z2:9 4:region=R1,zone=Z4:9"
		only4 = "4:region=R1,zone=Z4:9"
		no2   = "1:region=R2,zone=Z2:9 3:region=R1,zone=Z3:9"
	)
	two := []topology.Option{topology.WithCopies(2)}
	three := []topology.Option{topology.WithCopies(3)}
	runChoose(t, []chooseCase{
		{name: "one of one", req: requirement(z2, ""), from: zones, want: "2"},
		{name: "one of one that is not there", req: requirement(z2, ""), from: no2,
			code: codes.ResourceExhausted, text: "no storage pool in the requisite topology"},
		{name: "two of two", req: requirement(z23, ""), from: zones, opts: two, want: "2 3"},
		{name: "two of two, one missing", req: requirement(z23, ""), from: no3, opts: two,
			code: codes.ResourceExhausted, text: "topology.example.com/zone=Z3"},
		{name: "one of two", req: requirement(z23, ""), from: no35, want: "2"},
		{name: "two of three", req: requirement(z234, ""), from: no3, opts: two, want: "2 4"},
		{name: "two of three, one there", req: requirement(z234, ""), from: only4, opts: two,
			code: codes.ResourceExhausted, text: "only 1 of the 2 required topologies"},
		{name: "two, one of them requisite", req: requirement(z2, ""), from: zones, opts: two, want: "2 3"},
		{name: "three, two of them requisite", req: requirement(z23, ""), from: no5, opts: three, want: "2 3 4"},
		{name: "three, two of them requisite, no third", req: requirement(z23, ""), from: "2:region=R1,zone=Z2:9 3:region=R1,zone=Z3:9", opts: three,
			code: codes.ResourceExhausted, text: "only 2 of the 3 required topologies"},

		{name: "example 1", req: requirement(z23, "region=R1,zone=Z3"), from: zones, want: "3"},
		{name: "example 1, fall back", req: requirement(z23, "region=R1,zone=Z3"), from: no3, want: "2"},
		{name: "example 2", req: requirement(z2345, "region=R1,zone=Z4 region=R1,zone=Z2"), from: zones, want: "4"},
		{name: "example 2, second", req: requirement(z2345, "region=R1,zone=Z4 region=R1,zone=Z2"), from: "3:region=R1,zone=Z3:99 2:region=R1,zone=Z2:1", want: "2"},
		{name: "example 2, neither", req: requirement(z2345, "region=R1,zone=Z4 region=R1,zone=Z2"), from: "3:region=R1,zone=Z3:1 5:region=R1,zone=Z5:9", want: "5"},
		{name: "example 3", req: requirement(z2345, "region=R1,zone=Z5 region=R1,zone=Z3"), from: zones, opts: two, want: "5 3"},
		{name: "example 3, Z5 and others", req: requirement(z2345, "region=R1,zone=Z5 region=R1,zone=Z3"), from: no3, opts: two, want: "5 2"},
		{name: "example 3, Z3 and others", req: requirement(z2345, "region=R1,zone=Z5 region=R1,zone=Z3"), from: no5, opts: two, want: "3 2"},
		{name: "example 3, others", req: requirement(z2345, "region=R1,zone=Z5 region=R1,zone=Z3"), from: no35, opts: two, want: "2 4"},

		{name: "preferred only", req: requirement("", "region=R1,zone=Z3"), from: zones, want: "3"},
		{name: "preferred only, any other", req: requirement("", "region=R1,zone=Z3"), from: no3, want: "2"},
		{name: "preferred only, and any other", req: requirement("", "region=R1,zone=Z3"), from: zones, opts: two, want: "3 2"},
		{name: "no requirement", from: zones, want: "2"},

		{name: "neither", req: &csi.TopologyRequirement{}, from: zones, code: codes.InvalidArgument, text: "neither requisite nor preferred"},
		{name: "preferred but not requisite", req: requirement(z2, "region=R1,zone=Z3"), from: zones, code: codes.InvalidArgument, text: "is not among the requisite ones"},
		{name: "a broken term", req: requirement("zone=-", ""), from: zones, code: codes.InvalidArgument, text: "requisite[0]"},
		{name: "negative size", size: -1, from: zones, code: codes.InvalidArgument, text: "bytes"},
		{name: "no copies", from: zones, opts: []topology.Option{topology.WithCopies(0)}, code: codes.InvalidArgument, text: "0 copies"},
	})
}

// What external-provisioner sends, by binding mode and flags. Its nodes are n1 to
// n4 in the zones z1 to z3, with a pool each.
func TestChooseProvisioner(t *testing.T) {
	const (
		hosts = "p1:zone=z1,host=n1:10 p2:zone=z2,host=n2:20 p3:zone=z3,host=n3:30 p4:zone=z3,host=n4:5"
		n1    = "zone=z1,host=n1"
		n2    = "zone=z2,host=n2"
		n3    = "zone=z3,host=n3"
		n4    = "zone=z3,host=n4"
		all   = n1 + " " + n2 + " " + n3 + " " + n4 // sorted, distinct
		zones = "zone=z1 zone=z2 zone=z3"
	)
	runChoose(t, []chooseCase{
		// WaitForFirstConsumer, --strict-topology: only the selected node.
		{name: "strict", req: requirement(n2, n2), size: 5, from: hosts, want: "p2"},
		{name: "strict, full", req: requirement(n4, n4), size: 8, from: hosts, code: codes.ResourceExhausted, text: "p4 (topology.example.com/host=n4,topology.example.com/zone=z3) has 5 GiB free"},
		{name: "strict, and the plugin has no place there", req: requirement("zone=z9,host=n9", "zone=z9,host=n9"), size: 1, from: hosts, code: codes.ResourceExhausted, text: "is in no requisite topology"},
		// Not strict: all nodes, the selected one first.
		{name: "selected", req: requirement(all, n3+" "+n4+" "+n1+" "+n2), size: 5, from: hosts, want: "p3"},
		{name: "selected is full", req: requirement(all, n4+" "+n1+" "+n2+" "+n3), size: 8, from: hosts, want: "p1"},
		{name: "selected and next are full", req: requirement(all, n4+" "+n1+" "+n2+" "+n3), size: 15, from: hosts, want: "p2"},
		{name: "all are full", req: requirement(all, n1+" "+n2+" "+n3+" "+n4), size: 31, from: hosts, code: codes.ResourceExhausted, text: "requested 31 GiB; p1"},
		// allowedTopologies name fewer keys than the nodes have.
		{name: "allowed zones, selected first", req: requirement(zones, "zone=z3 zone=z1 zone=z2"), size: 5, from: hosts, want: "p3"},
		{name: "allowed zones, pack", req: requirement(zones, "zone=z3 zone=z1 zone=z2"), size: 5, from: hosts, opts: []topology.Option{topology.WithPack()}, want: "p4"},
		{name: "a single requisite", req: requirement("zone=z3", "zone=z3"), size: 8, from: hosts, want: "p3"},
		{name: "a single requisite, two copies there", req: requirement("zone=z3", "zone=z3"), size: 5, from: hosts, opts: []topology.Option{topology.WithCopies(2)}, want: "p3 p4"},
		// Immediate binding with --immediate-topology=false: nothing.
		{name: "nothing asked", size: 5, from: hosts, want: "p3"},
	})

	// Immediate binding: preferred is rotated by a hash of the claim's name, and by
	// the index for the claims of a StatefulSet: they spread over the zones.
	t.Run("StatefulSet", func(t *testing.T) {
		const hash = 7
		requisite := strings.Fields(zones)
		from := pools("p1:zone=z1:100 p2:zone=z2:10 p3:zone=z3:10")
		var got []string
		for index := range 6 {
			first := (hash + index) % len(requisite)
			preferred := append(slices.Clone(requisite[first:]), requisite[:first]...)
			chosen, err := topology.Choose(requirement(zones, strings.Join(preferred, " ")), 4*gib, from)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, chosen[0].Name)
			for i := range from {
				if from[i].Name == chosen[0].Name {
					from[i].Free -= 4 * gib
				}
			}
		}
		if want := "p2 p3 p1 p2 p3 p1"; strings.Join(got, " ") != want {
			t.Errorf("got %v, want %s", got, want)
		}
		// Two of three zones are nearly full by now: the next one in turn is taken.
		chosen, err := topology.Choose(requirement(zones, "zone=z2 zone=z3 zone=z1"), 4*gib, from)
		if err != nil || names(chosen) != "p1" {
			t.Errorf("got %v, %v, want p1", names(chosen), err)
		}
	})
}

func TestChooseAmong(t *testing.T) {
	pack, two := topology.WithPack(), topology.WithCopies(2)
	opts := func(o ...topology.Option) []topology.Option { return o }
	runChoose(t, []chooseCase{
		{name: "spread", size: 2, from: "a:zone=z1:3 b:zone=z1:9 c:zone=z2:5", want: "b"},
		{name: "spread, said", size: 2, from: "a:zone=z1:3 b:zone=z1:9", opts: opts(pack, topology.WithSpread()), want: "b"},
		{name: "pack", size: 2, from: "a:zone=z1:3 b:zone=z1:9 c:zone=z2:1", opts: opts(pack), want: "a"},
		{name: "equal: the first", from: "a:zone=z1:3 b:zone=z1:3 c:zone=z2:3", want: "a"},
		{name: "equal: the first, packed", from: "a:zone=z1:3 b:zone=z1:3 c:zone=z2:3", opts: opts(pack), want: "a"},
		{name: "just enough", size: 3, from: "a:zone=z1:3", want: "a"},
		{name: "too large for the place", size: 3, from: "a:zone=z1:9:2 b:zone=z1:4:3", want: "b"},
		{name: "too large for all", size: 4, from: "a:zone=z1:9:2", code: codes.ResourceExhausted, text: "allows volumes of at most 2 GiB"},
		{name: "copies are in different topologies", from: "a:zone=z1:9 b:zone=z1:8 c:zone=z2:1", opts: opts(two), want: "a c"},
		{name: "copies without", from: "a:zone=z1:9 b:zone=z1:8", opts: opts(two), code: codes.ResourceExhausted, text: "b (topology.example.com/zone=z1) fits"},
		{name: "any size", from: "a:zone=z1:0", want: "a"},
		{name: "no topology at all", size: 1, from: "a::2 b::3", want: "b"},
		{name: "everywhere is requisite as well", req: requirement("zone=z1", ""), from: "a:zone=z2:2 b::3", want: "b"},
		{name: "nothing known", req: requirement("zone=z1", ""), code: codes.ResourceExhausted, text: "no storage pools are configured"},
		{name: "the text is bounded", size: 9, from: strings.Repeat("pool:zone=z1:1 ", 50), code: codes.ResourceExhausted, text: "and 44 more"},
		{name: "terms in common", req: requirement("zone=z1 zone=z1,rack=r1 zone=z2", ""), from: "a:zone=z1,rack=r1:9 b:zone=z1,rack=r2:1", opts: opts(two), want: "a b"},
	})
	from := pools("a:zone=z1:1 b:zone=z1:2")
	from[0].Free = math.MaxInt64
	if chosen, err := topology.Choose(nil, math.MaxInt64, from); err != nil || names(chosen) != "a" {
		t.Errorf("the largest size: %v, %v", names(chosen), err)
	}
	from[0].Free = -1
	if _, err := topology.Choose(nil, math.MaxInt64, from); err == nil || !strings.Contains(err.Error(), "has 0 bytes free") || len(err.Error()) > 1024 {
		t.Errorf("err = %v", err)
	}
}

func TestSatisfies(t *testing.T) {
	accessible := func(text string) (list []topology.Segments) {
		for _, term := range strings.Fields(text) {
			list = append(list, segs(term))
		}
		return list
	}
	tests := []struct {
		name                  string
		requisite, accessible string
		want                  bool
	}{
		{"the same", "zone=z1", "zone=z1", true},
		{"another", "zone=z1", "zone=z2", false},
		{"everywhere", "zone=z1", "", true},
		{"one of two", "zone=z1 zone=z2", "zone=z2", true},
		{"none of two", "zone=z1 zone=z2", "zone=z3", false},
		{"two of two", "zone=z1 zone=z2", "zone=z2 zone=z1", true},
		{"two, one of them in two", "zone=z1 zone=z2", "zone=z1 zone=z3", false},
		{"two of three", "zone=z1 zone=z2 zone=z3", "zone=z1 zone=z3", true},
		{"two, one of them in three", "zone=z1 zone=z2 zone=z3", "zone=z1 zone=z4", false},
		{"three with the one", "zone=z1", "zone=z3 zone=z2 zone=z1", true},
		{"three without the one", "zone=z1", "zone=z3 zone=z2 zone=z4", false},
		{"wider", "zone=z1,rack=r1", "zone=z1", true},
		{"narrower", "zone=z1", "zone=z1,rack=r1", true},
		{"aside", "zone=z1,rack=r1", "zone=z1,host=h1", false},
		{"two in one requisite of three", "zone=z1 zone=z2 zone=z3", "zone=z1,rack=r1 zone=z1,rack=r2", false},
		{"repeats count once", "zone=z1 zone=z1", "zone=z1 zone=z1", true},
		{"the other way round", "zone=z1 zone=z1,rack=r1 zone=z2", "zone=z1,rack=r1 zone=z1,rack=r2", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := topology.Satisfies(requirement(tt.requisite, ""), accessible(tt.accessible)...)
			if err != nil || got != tt.want {
				t.Errorf("Satisfies = %v, %v, want %v", got, err, tt.want)
			}
		})
	}
	for name, req := range map[string]*csi.TopologyRequirement{"nil": nil, "preferred only": requirement("", "zone=z1")} {
		if ok, err := topology.Satisfies(req, segs("zone=z2")); !ok || err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
	if ok, err := topology.Satisfies(requirement("zone=z1", ""), segs("zone=z2"), nil); !ok || err != nil {
		t.Errorf("everywhere, among others: %v, %v", ok, err)
	}
	if _, err := topology.Satisfies(&csi.TopologyRequirement{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an empty requirement: %v", err)
	}
}

// naive implements the specification by exhaustive search.
type naive struct {
	requisite, preferred []topology.Segments
	size                 int64
	from                 []topology.Candidate
	copies               int
	pack                 bool
}

func match(a, b topology.Segments) bool { return a.Matches(b) || b.Matches(a) }

// satisfied tries every assignment of requisite topologies to the accessible ones.
func (n *naive) satisfied(accessible []topology.Segments) bool {
	if len(accessible) >= len(n.requisite) {
		for _, q := range n.requisite {
			if !slices.ContainsFunc(accessible, func(a topology.Segments) bool { return match(a, q) }) {
				return false
			}
		}
		return true
	}
	used := make([]bool, len(n.requisite))
	var give func(left []topology.Segments) bool
	give = func(left []topology.Segments) bool {
		if len(left) == 0 {
			return true
		}
		for i, q := range n.requisite {
			if used[i] || !match(left[0], q) {
				continue
			}
			used[i] = true
			if give(left[1:]) {
				return true
			}
			used[i] = false
		}
		return false
	}
	return give(accessible)
}

// before reports whether candidate i is preferred to j.
func (n *naive) before(i, j int) bool {
	rank := func(c topology.Candidate) int {
		for r, p := range n.preferred {
			if match(c.Segments, p) {
				return r
			}
		}
		if slices.ContainsFunc(n.requisite, func(q topology.Segments) bool { return match(c.Segments, q) }) {
			return len(n.preferred)
		}
		return len(n.preferred) + 1
	}
	a, b := n.from[i], n.from[j]
	switch {
	case rank(a) != rank(b):
		return rank(a) < rank(b)
	case a.Free != b.Free:
		return a.Free > b.Free != n.pack
	}
	return i < j
}

// choose returns the indexes of the best set, in order; nil if there is none.
func (n *naive) choose() (best []int) {
	var try func(set []int, next int)
	try = func(set []int, next int) {
		if len(set) == n.copies {
			var accessible []topology.Segments
			for _, i := range set {
				accessible = append(accessible, n.from[i].Segments)
			}
			if !n.satisfied(accessible) {
				return
			}
			sorted := slices.Clone(set)
			slices.SortFunc(sorted, func(i, j int) int {
				if i == j {
					return 0
				} else if n.before(i, j) {
					return -1
				}
				return 1
			})
			for k := range sorted {
				if best == nil || n.before(sorted[k], best[k]) {
					best = sorted
				} else if sorted[k] == best[k] {
					continue
				}
				break
			}
			return
		}
		for i := next; i < len(n.from); i++ {
			c := n.from[i]
			same := func(j int) bool { return n.from[j].Segments.Equal(c.Segments) }
			if c.Free >= n.size && (c.MaxVolume == 0 || c.MaxVolume >= n.size) && !slices.ContainsFunc(set, same) {
				try(append(slices.Clip(set), i), i+1)
			}
		}
	}
	try(nil, 0)
	return best
}

func TestChooseAgainstNaive(t *testing.T) {
	seed := rand.Uint64()
	for run := range uint64(10_000) {
		rnd := rand.New(rand.NewPCG(seed, run))
		// With all keys everywhere, as plugins and provisioner have it, the choice
		// is determined. With some left out only whether there is one is.
		full := run%2 == 0
		somewhere := func() topology.Segments {
			s := topology.Segments{zone: fmt.Sprint("z", rnd.IntN(3)), rack: fmt.Sprint("r", rnd.IntN(2))}
			if !full {
				for _, key := range []string{zone, rack} {
					if rnd.IntN(3) == 0 {
						delete(s, key)
					}
				}
				if len(s) == 0 {
					s[zone] = "z0"
				}
			}
			return s
		}
		n := naive{size: rnd.Int64N(4), copies: 1 + rnd.IntN(3), pack: rnd.IntN(2) == 0}
		for i := range rnd.IntN(6) {
			n.from = append(n.from, topology.Candidate{Name: fmt.Sprint(i), Segments: somewhere(), Free: rnd.Int64N(5), MaxVolume: rnd.Int64N(5)})
		}
		distinct := func(list []topology.Segments) []topology.Segments {
			var out []topology.Segments
			for _, s := range list {
				if !slices.ContainsFunc(out, s.Equal) {
					out = append(out, s)
				}
			}
			return out
		}
		req := &csi.TopologyRequirement{}
		for range rnd.IntN(5) {
			n.requisite = append(n.requisite, somewhere())
		}
		n.requisite = distinct(n.requisite)
		n.preferred = slices.Clone(n.requisite)
		if len(n.requisite) == 0 {
			n.preferred = distinct([]topology.Segments{somewhere(), somewhere()})
		}
		rnd.Shuffle(len(n.preferred), func(i, j int) { n.preferred[i], n.preferred[j] = n.preferred[j], n.preferred[i] })
		if len(n.requisite) > 0 {
			n.preferred = n.preferred[:rnd.IntN(len(n.preferred)+1)]
		}
		for _, s := range n.requisite {
			req.Requisite = append(req.Requisite, s.Topology())
		}
		for _, s := range n.preferred {
			req.Preferred = append(req.Preferred, s.Topology())
		}
		opts := []topology.Option{topology.WithCopies(n.copies)}
		if n.pack {
			opts = append(opts, topology.WithPack())
		}

		describe := func() string {
			return fmt.Sprintf("seed %d, run %d: requisite %v, preferred %v, %d copies of %d, pack %v, from %v", seed, run, n.requisite, n.preferred, n.copies, n.size, n.pack, n.from)
		}
		best := n.choose()
		chosen, err := topology.Choose(req, n.size, n.from, opts...)
		if (err == nil) != (best != nil) {
			t.Fatalf("%s\nChoose = %v, %v, want %v", describe(), names(chosen), err, best)
		}
		if err != nil {
			if status.Code(err) != codes.ResourceExhausted {
				t.Fatalf("%s\n%v", describe(), err)
			}
			continue
		}
		var want []topology.Candidate
		for _, i := range best {
			want = append(want, n.from[i])
		}
		if (full || n.copies < len(n.requisite)) && names(chosen) != names(want) {
			t.Fatalf("%s\nChoose = %v, want %v", describe(), names(chosen), names(want))
		}
		var accessible []topology.Segments
		for _, m := range topology.AccessibleTopology(chosen...) {
			accessible = append(accessible, topology.FromTopology(m))
		}
		ok, err := topology.Satisfies(req, accessible...)
		if !ok || err != nil || len(accessible) != n.copies || !n.satisfied(accessible) {
			t.Fatalf("%s\nSatisfies(%v) = %v, %v", describe(), accessible, ok, err)
		}
	}
}
