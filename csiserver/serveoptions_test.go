package csiserver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csikit/csikit/csiserver"
)

// httpAddress waits until the health pages are served.
func httpAddress(t *testing.T, book *logBook) string {
	t.Helper()
	var lines []map[string]any
	until(func() bool { lines = book.lines(t, "serving health"); return len(lines) > 0 })
	return fmt.Sprint("http://", lines[0]["http"])
}

func TestServeHealth(t *testing.T) {
	book := &logBook{}
	s := newServer(t, csiserver.WithLogger(book.logger(slog.LevelInfo)))
	mux := http.NewServeMux()
	mux.Handle("/", s.Health())
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "up 1") })
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	path := dir(t) + "/csi.sock"
	lis := listen(t, path)
	go func() {
		done <- s.Serve(ctx, lis, csiserver.WithHealth("127.0.0.1:0", mux), csiserver.WithHealth("", nil))
	}()
	address := httpAddress(t, book)
	for page, want := range map[string]string{"/healthz": "ok", "/metrics": "up 1", "/debug": "calls: 0"} {
		resp, err := http.Get(address + page)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s: %q, %v", page, body, err)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	http.DefaultClient.CloseIdleConnections()
	if resp, err := http.Get(address + "/healthz"); err == nil {
		resp.Body.Close()
		t.Error("the pages are still served")
	}
}

// An address that is taken is an error before anything is served, and nothing is left.
func TestServeHealthAddressInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	book := &logBook{}
	path := dir(t) + "/csi.sock"
	h := http.NotFoundHandler()
	err = newServer(t, csiserver.WithLogger(book.logger(slog.LevelInfo))).Serve(t.Context(), listen(t, path),
		csiserver.WithHealth("127.0.0.1:0", h), csiserver.WithHealth(taken.Addr().String(), h),
		csiserver.WithBackground("registration", func(context.Context) error { t.Error("was started"); return nil }))
	var e *csiserver.Error
	if !errors.As(err, &e) || e.Op != "serve" || !strings.Contains(err.Error(), "health: listen tcp "+taken.Addr().String()) {
		t.Errorf("got %v", err)
	}
	if exists(path) || book.String() != "" {
		t.Errorf("the socket file is left: %v; logged: %s", exists(path), book)
	}
}

// A request that does not end delays the stop of the server by half a second at most.
func TestServeHealthStopIsBounded(t *testing.T) {
	book := &logBook{}
	entered, release := make(chan struct{}), make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	s, lis := newServer(t, csiserver.WithLogger(book.logger(slog.LevelInfo))), listen(t, dir(t)+"/csi.sock")
	go func() {
		done <- s.Serve(ctx, lis, csiserver.WithHealth("127.0.0.1:0",
			http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(entered); <-release })))
	}()
	answered := make(chan error, 1)
	address := httpAddress(t, book)
	go func() {
		resp, err := http.Get(address)
		if err == nil {
			resp.Body.Close()
		}
		answered <- err
	}()
	<-entered
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := <-answered; err == nil {
		t.Error("the request was answered, although its handler hangs")
	}
	close(release)
}

// inBubble serves on a listener without a kernel, so that time is synctest's.
func inBubble(ctx context.Context, t *testing.T, book *logBook, opts ...csiserver.ServeOption) error {
	t.Helper()
	s := newServer(t, csiserver.WithLogger(book.logger(slog.LevelInfo)), csiserver.WithDrainTimeout(0))
	return s.Serve(ctx, &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}, opts...)
}

func TestServeBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &logBook{}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		err := inBubble(ctx, t, book,
			csiserver.WithBackground("a", func(context.Context) error { return errors.New("failed early") }),
			csiserver.WithBackground("b", func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(100 * time.Millisecond)
				return errors.New("cannot clean up")
			}),
			csiserver.WithBackground("c", func(ctx context.Context) error { <-ctx.Done(); return nil }))
		if ctx.Err() == nil {
			t.Error("an error in the background ended the server")
		}
		if err == nil || !strings.Contains(err.Error(), "a: failed early\nb: cannot clean up") {
			t.Errorf("got %v", err)
		}
		if lines := book.lines(t, "background function failed"); len(lines) != 1 || lines[0]["name"] != "a" {
			t.Errorf("%s", book)
		}
	})
}

// The bound of Serve holds for functions that ignore their context.
func TestServeBackgroundThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		release := make(chan struct{})
		defer close(release)
		start := time.Now()
		err := inBubble(ctx, t, &logBook{},
			csiserver.WithBackground("hangs", func(context.Context) error { <-release; return nil }),
			csiserver.WithBackground("does not", func(ctx context.Context) error { <-ctx.Done(); return nil }))
		if err == nil || !strings.Contains(err.Error(), "hangs: has not returned although its context ended") || strings.Contains(err.Error(), "does not:") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != time.Minute+time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// A listener that fails ends what runs beside the server.
func TestServeBackgroundEndsWithTheServer(t *testing.T) {
	s, lis := newServer(t), listen(t, dir(t)+"/csi.sock")
	err := s.Serve(t.Context(), lis, csiserver.WithBackground("b", func(ctx context.Context) error {
		lis.Close()
		<-ctx.Done()
		return nil
	}))
	if err == nil {
		t.Error("no error although the listener failed")
	}
}

// Without a handler net/http would serve http.DefaultServeMux, with whatever the
// driver's dependencies registered there, such as pprof.
func TestServeOptionsRefused(t *testing.T) {
	path := dir(t) + "/csi.sock"
	err := newServer(t).Serve(t.Context(), listen(t, path), csiserver.WithHealth("127.0.0.1:0", nil), csiserver.WithBackground("b", nil))
	if err == nil || !strings.Contains(err.Error(), "WithHealth: the handler is nil\nWithBackground: the function of \"b\" is nil") {
		t.Errorf("got %v", err)
	}
	if exists(path) {
		t.Error("the socket file is left")
	}
}

// A SIGTERM during start is a stop, also if the health address is a host name, whose
// lookup fails once the context has ended.
func TestServeHealthStoppedBefore(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	path := dir(t) + "/csi.sock"
	if err := newServer(t).Serve(ctx, listen(t, path), csiserver.WithHealth("localhost:0", http.NotFoundHandler())); err != nil {
		t.Error(err)
	}
	if exists(path) {
		t.Error("the socket file is left")
	}
}

// Functions that return the error of their context have stopped as requested.
func TestServeBackgroundReturnsContextError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		returns := func(of func(error) error) csiserver.ServeOption {
			return csiserver.WithBackground("b", func(ctx context.Context) error { <-ctx.Done(); return of(ctx.Err()) })
		}
		if err := inBubble(ctx, t, &logBook{}, returns(func(err error) error { return fmt.Errorf("wait: %w", err) })); err != nil {
			t.Error(err)
		}
		if err := inBubble(ctx, t, &logBook{}, returns(func(err error) error { return errors.Join(err, errors.New("cannot clean up")) })); err == nil {
			t.Error("another error was lost")
		}
	})
}

// A function whose goroutine ends is not waited for.
func TestServeBackgroundGoexit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &logBook{}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		start := time.Now()
		err := inBubble(ctx, t, book, csiserver.WithBackground("b", func(context.Context) error { runtime.Goexit(); return nil }))
		if err == nil || !strings.Contains(err.Error(), "b: did not return") || time.Since(start) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if len(book.lines(t, "background function failed")) != 1 {
			t.Errorf("%s", book)
		}
	})
}
