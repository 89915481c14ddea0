package csierr_test

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/csikit/csikit/csierr"
	"google.golang.org/grpc/status"
)

// The storage says what happened; the code follows from it.
func Example() {
	find := func(id string) error {
		return fmt.Errorf("no LUN has this serial number: %w", csierr.NotFound)
	}
	err := csierr.Errorf("attach volume", "vol-1", "%w", find("vol-1"))
	fmt.Println(status.Code(err), errors.Is(err, csierr.NotFound))
	fmt.Println(err)

	// An error that is not classified is one after which the CO retries.
	err = csierr.Errorf("delete volume", "vol-1", "%w", fs.ErrClosed)
	fmt.Println(status.Code(err))
	// Output:
	// NotFound true
	// attach volume "vol-1": no LUN has this serial number: not found
	// Unavailable
}
