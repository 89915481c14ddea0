package loopdev_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/csikit/csikit/loopdev"
)

// Staging a volume attaches its image, whether or not an earlier attempt already did.
func ExampleAttach() {
	d, err := loopdev.Attach(context.Background(), "/pool/vol-1.img")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(d.Path, d.Size)
}

// Unstaging needs no state: the kernel knows the device of the image.
func ExampleFind() {
	d, err := loopdev.Find("/pool/vol-1.img")
	if errors.Is(err, loopdev.ErrNotAttached) || errors.Is(err, fs.ErrNotExist) {
		return // detached already
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := d.Detach(context.Background()); err != nil {
		fmt.Println(err)
	}
}

// Images that were deleted while attached still take up space.
func ExampleList() {
	devices, err := loopdev.List()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, d := range devices {
		if d.Deleted {
			fmt.Printf("%s still holds %d bytes of %s\n", d.Path, d.Size, d.Backing)
		}
	}
}

// Errors name the operation and the image, and wrap their cause.
func ExampleError() {
	_, err := loopdev.Find("/nonexistent/image")
	fmt.Println(errors.Is(err, fs.ErrNotExist) || errors.Is(err, errors.ErrUnsupported))
	var e *loopdev.Error
	if errors.As(err, &e) {
		fmt.Println(e.Op, e.Path)
	}
	// Output:
	// true
	// find /nonexistent/image
}
