package fastmount

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// Error says which operation failed on what. It unwraps to the kernel's errno.
// No value of a sensitive option is in it or in what it unwraps to.
type Error struct {
	Op      string // "mount", "bind", "remount" or "unmount"
	Source  string // empty if there is none
	Target  string
	FSType  string // empty if there is none
	Options string // as given, comma-separated; each sensitive one is <masked>
	Err     error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.FSType != "" {
		b.WriteString(" " + e.FSType)
	}
	if e.Source != "" {
		b.WriteString(" " + e.Source + " on")
	}
	b.WriteString(" " + e.Target)
	if e.Options != "" {
		b.WriteString(" (options " + e.Options + ")")
	}
	return b.String() + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

func maskedOptions(options, sensitive []string) string {
	all := append([]string(nil), options...)
	for range sensitive {
		all = append(all, "<masked>")
	}
	return strings.Join(all, ",")
}

// withhold keeps the errno alone. The kernel quotes options in what it says, in
// parts and in forms of its own, so that a search for the secret would miss some.
func withhold(err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return errors.New("the options cannot be read (details could quote a sensitive option)")
	}
	return fmt.Errorf("%w (details could quote a sensitive option; the kernel's log may have them)", errno)
}
