package loopdev_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"

	"github.com/csikit/csikit/loopdev"
)

// Stage attaches, whether or not an earlier attempt did so already.
func ExampleAttach() {
	_ = func(ctx context.Context, image string) (string, error) {
		d, err := loopdev.Attach(ctx, image)
		if err != nil {
			return "", err
		}
		return d.Path, nil
	}
}

// Unstage needs to remember nothing: the kernel knows the device of the image.
func ExampleFind() {
	_ = func(ctx context.Context, image string) error {
		d, err := loopdev.Find(image)
		if errors.Is(err, loopdev.ErrNotAttached) || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return d.Detach(ctx)
	}
}

// Images that somebody deleted while they were attached.
func ExampleList() {
	_ = func() {
		devices, err := loopdev.List()
		if err != nil {
			log.Fatal(err)
		}
		for _, d := range devices {
			if d.Deleted {
				fmt.Printf("%s still holds %d bytes of %s\n", d.Path, d.Size, d.Backing)
			}
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
