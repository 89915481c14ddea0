package csiserver_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
)

// A client that has connected and sent nothing, or half of its greeting, delays no stop.
func TestSilentClientDoesNotDelayAStop(t *testing.T) {
	for _, sent := range []string{"", "PRI * HTTP/2.0\r\n"} {
		synctest.Test(t, func(t *testing.T) {
			lis := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			s := newServer(t, csiserver.WithDrainTimeout(20*time.Second))
			go func() { done <- s.Serve(ctx, lis) }()
			client, server := net.Pipe()
			defer client.Close()
			go func() { _, _ = client.Write([]byte(sent)) }()
			lis.conns <- server
			synctest.Wait()
			cancel()
			stop := time.Now() // of the fake clock
			if err := <-done; err != nil {
				t.Error(err)
			}
			if d := time.Since(stop); d != 0 {
				t.Errorf("after %q, Serve took %v", sent, d)
			}
		})
	}
}

// An error that names thousands of calls is of no use in a log or a termination message.
func TestAbortedCallsAreListedInPart(t *testing.T) {
	const calls = 200
	var running sync.WaitGroup
	running.Add(calls)
	release := make(chan struct{})
	p := serve(t, csiserver.WithDrainTimeout(0), csiserver.WithNode(&node{unpublish: func(context.Context, *csi.NodeUnpublishVolumeRequest) error {
		running.Done()
		<-release
		return nil
	}}))
	var clients sync.WaitGroup
	for range calls {
		clients.Go(func() { _, _ = p.node().NodeUnpublishVolume(t.Context(), unpublishRequest) })
	}
	running.Wait()
	err := p.wait()
	close(release)
	clients.Wait()
	var e *csiserver.Error
	if !errors.As(err, &e) || len(err.Error()) > 8<<10 || !strings.Contains(err.Error(), fmt.Sprintf("and %d more", calls-32)) {
		t.Errorf("%.300v: %d bytes", err, len(fmt.Sprint(err)))
	}
}
