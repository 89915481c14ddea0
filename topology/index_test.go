package topology

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// The index finds what a comparison with each term finds, for all kinds of sets: nested, with
// other keys, empty, and with a key twice (in other case), which candidates may have.
func TestIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	random := func(twice bool) form {
		s := Segments{}
		for _, key := range []string{"zone", "rack", "host"} {
			if r.IntN(3) > 0 {
				s[key] = fmt.Sprint(r.IntN(3))
			}
		}
		if twice && r.IntN(4) == 0 {
			s["Zone"] = fmt.Sprint(r.IntN(3))
		}
		return canonical(s)
	}
	found := 0
	for range 3000 {
		terms := make([]form, r.IntN(8))
		for i := range terms {
			terms[i] = random(false) // they are validated
		}
		x := newIndex(terms)
		for range 5 {
			f := random(true)
			want := slices.IndexFunc(terms, f.compatible)
			if got := x.first(f); got != want {
				t.Fatalf("first %v of %v: %d, want %d", f, terms, got, want)
			}
			if want > 0 {
				found++
			}
		}
	}
	if found < 1000 {
		t.Errorf("only %d were found behind the first", found)
	}
}
