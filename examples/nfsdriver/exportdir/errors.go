package exportdir

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/csikit/csikit/csierr"
)

// Failures of this storage, with the kinds that they have for the CO.
var (
	errRefused    = csierr.Precondition.New("refused") // an administrator has to act
	errDamaged    = csierr.DataLoss.New("damaged")
	errIncomplete = csierr.Uncertain.New("incomplete") // the object exists, and a retry completes it

	// errMounted: the volume is not one file system.
	errMounted = fmt.Errorf("%w: another file system is mounted there, which is not part of the volume; unmount it on the server", errRefused)
)

// errnos are those that mean that nothing was changed, and what to do about them.
var errnos = []struct {
	errno syscall.Errno
	kind  csierr.Kind
	hint  string
}{
	{syscall.EACCES, csierr.Precondition, "; the driver acts as root: export with no_root_squash"},
	{syscall.EPERM, csierr.Precondition, "; the driver acts as root: export with no_root_squash"},
	{syscall.EROFS, csierr.Precondition, "; export it read-write"},
	{syscall.ENOSPC, csierr.NoSpace, ""},
	{syscall.EDQUOT, csierr.NoSpace, ""},
}

// classified is an error with the kind of its errno.
type classified struct {
	err  error
	kind csierr.Kind
	hint string
}

func (c *classified) Error() string   { return c.err.Error() + c.hint }
func (c *classified) Unwrap() []error { return []error{c.kind, c.err} }

// classify gives an error without a kind that of its errno. An I/O error has none, and so
// is UNAVAILABLE: it may have occurred after the change became visible.
func classify(err error) error {
	for _, e := range errnos {
		if errors.Is(err, e.errno) && csierr.KindOf(err) == csierr.Unknown {
			return &classified{err, e.kind, e.hint}
		}
	}
	return err
}

// incomplete wraps an error that occurred after the object came into existence: an errno
// that otherwise means that nothing was changed does not mean so there.
func incomplete(err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	return fmt.Errorf("%w: %w", errIncomplete, err)
}

// final reports whether the CO takes the error as final: it may not repeat the request,
// so nothing must be left behind.
func final(err error) bool { return err != nil && csierr.IsFinal(classify(err)) }

// fail returns what a method of the backend returns.
func fail(op, object, format string, args ...any) error {
	return csierr.Errorf(op, object, "%w", classify(fmt.Errorf(format, args...)))
}
