package fastmount

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// Error is a failed operation with its arguments. It unwraps to the kernel's errno.
// Neither it nor an error that it wraps contains the value of a sensitive option.
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

// redact keeps only the errno. The kernel quotes options in its messages, partly and
// in other forms, so that searching for the secret would miss some.
func redact(err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return errors.New("the options cannot be read (details could quote a sensitive option)")
	}
	return fmt.Errorf("%w (details could quote a sensitive option; the kernel's log may have them)", errno)
}
