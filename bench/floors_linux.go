package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// floor is a limit of a ratio of times: in its fastest round, the way needs at most that many
// times as long as the first one of its table in its own.
type floor struct {
	AtMost float64 `json:"at_most"`
	Why    string  `json:"why"`
}

// check compares the ratios with the floors in the file, by name. Each floor has to have been
// measured.
func (b *bench) check(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var floors map[string]floor
	if err := json.Unmarshal(text, &floors); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	figures := b.figures()
	var failed []error
	for _, name := range sortedKeys(floors) {
		f := floors[name]
		c, measured := figures[name]
		switch {
		case !measured:
			failed = append(failed, fmt.Errorf("%q was not measured", name))
		case c.best > f.AtMost:
			failed = append(failed, fmt.Errorf("%s: %.3g times as long, want at most %.3g (%s)", name, c.best, f.AtMost, f.Why))
		default:
			fmt.Printf("ok: %s: %.3g, at most %.3g\n", name, c.best, f.AtMost)
		}
	}
	return errors.Join(failed...)
}
