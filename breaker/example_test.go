package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/csikit/csikit/breaker"
	"google.golang.org/grpc/status"
)

// The API of an array refuses connections: the first call finds out, and the next one is
// refused without a request.
func ExampleGroup_Watch() {
	var arrays breaker.Group
	array := breaker.Server{Name: "array1"}
	requests := 0
	createLUN := func(ctx context.Context) error { // an HTTP request with ctx in a driver
		requests++
		return fmt.Errorf("POST /luns: %w", syscall.ECONNREFUSED)
	}
	fmt.Println(arrays.Watch(context.Background(), array, createLUN))

	err := arrays.Watch(context.Background(), array, createLUN)
	var refused *breaker.Error
	fmt.Println(errors.As(err, &refused), status.Code(err), "after", requests, "request")
	for _, s := range arrays.Snapshot() {
		fmt.Println(s.Server, s.State, s.Error)
	}
	// Output:
	// POST /luns: connection refused
	// true Unavailable after 1 request
	// array1 open POST /luns: connection refused
}

// A copy on a file server cannot be aborted, and may take longer than any call: it reports
// progress, and a retry joins it.
func ExampleGroup_Do() {
	var servers breaker.Group
	nas := breaker.Server{Name: "nas", Probe: nil} // breaker.DialTCP("nas:2049") in a driver
	copied, _, err := servers.Do(context.Background(), nas, "clone vol-1 to vol-2", func(j *breaker.Job) (any, error) {
		total := int64(0)
		for _, file := range []int64{4096, 512} {
			total += file // copy_file_range in a driver
			j.Progress(1, file)
		}
		return total, nil
	})
	fmt.Println(copied, err)
	// Output: 4608 <nil>
}
