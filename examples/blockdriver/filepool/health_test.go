package filepool

import "testing"

// A pool that is full is reported for each of its volumes.
func TestHealthOfAFullPool(t *testing.T) {
	b := openBackend(t, t.TempDir(), nil)
	v := mustCreate(t, b, spec("a"))
	b.space = func() (int64, int64, error) { return 1 << 40, mib - 1, nil }
	problems, err := b.CheckVolume(t.Context(), v.ID)
	if err != nil || len(problems) != 1 || problems[0].Reason != reasonFull {
		t.Errorf("%+v, %v", problems, err)
	}
	b.space = func() (int64, int64, error) { return 1 << 40, 1 << 39, nil }
	if problems, err := b.CheckVolume(t.Context(), v.ID); err != nil || len(problems) > 0 {
		t.Errorf("with room again: %+v, %v", problems, err)
	}
}
