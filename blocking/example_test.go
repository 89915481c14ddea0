package blocking_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/csikit/csikit/blocking"
)

func ExampleGroup_Do() {
	var g blocking.Group
	size, _, err := g.Do(context.Background(), "statfs /data", func() (any, error) {
		return int64(4096), nil // syscall.Statfs in a driver
	})
	fmt.Println(size, err)
	// Output: 4096 <nil>
}

// A server does not respond: the first caller gets an error at its deadline, and a retry
// would wait for the same call.
func ExamplePendingError() {
	var g blocking.Group
	serverBack := make(chan struct{})
	umount := func() (any, error) {
		<-serverBack // unix.Unmount in a driver
		return nil, nil
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, _, err := g.Do(ctx, "umount /data", umount)
	var pending *blocking.PendingError
	fmt.Println("pending:", errors.As(err, &pending))
	for _, c := range g.Snapshot() {
		fmt.Println("listed:", c.Key, "waiters:", c.Waiters)
	}

	close(serverBack)
	<-pending.Pending()
	fmt.Println("listed:", len(g.Snapshot()))
	// Output:
	// pending: true
	// listed: umount /data waiters: 0
	// listed: 0
}
