package csiserver

import (
	"context"
	"errors"
	"fmt"
	"log" //nolint:depguard // http.Server.ErrorLog has this type
	"log/slog"
	"net"
	"net/http"
	"time"
)

const (
	// healthHeaderTimeout bounds a client that connects to the health server and sends
	// nothing.
	healthHeaderTimeout = 5 * time.Second
	// healthStopTimeout is what HTTP requests in flight get to end.
	healthStopTimeout = unwindTimeout / 2
)

// A ServeOption adds what [Server.Serve] runs beside the gRPC server.
type ServeOption interface{ applyServe(*serveConfig) }

type serveConfig struct {
	health     []healthServer
	background []background
	errs       []error
}

type serveOption func(*serveConfig)

func (o serveOption) applyServe(c *serveConfig) { o(c) }

// WithHealth serves h, which is [Server.Health] or has it in a mux of its own beside a
// page for metrics, by HTTP on address, such as "127.0.0.1:9808". An empty address adds
// nothing.
//
// Serve fails before it serves anything if it cannot listen on address. A later failure
// of the HTTP server is logged and does not end Serve. The pages remain while calls are
// drained; requests in flight then get half a second to end, within the bound of Serve.
func WithHealth(address string, h http.Handler) ServeOption {
	// The server is made here and nowhere else, so that the linker leaves net/http's server,
	// 1.7 MB, out of programs that do not call WithHealth.
	start := func(errorLog *log.Logger) httpServer {
		return &http.Server{Handler: h, ReadHeaderTimeout: healthHeaderTimeout, ErrorLog: errorLog}
	}
	return serveOption(func(c *serveConfig) {
		if address != "" {
			if h == nil { // http.Server would serve http.DefaultServeMux
				c.errs = append(c.errs, errors.New("WithHealth: the handler is nil"))
			}
			c.health = append(c.health, healthServer{address: address, start: start})
		}
	})
}

// WithBackground runs a function beside the server, such as the Serve of a
// registration.Registrar. Its context ends with that of Serve, or when the server fails.
// Serve waits for it, within the bound of Serve, and its error becomes part of Serve's,
// unless it is that of its context after the context ended; if it returns one earlier,
// that is logged and does not end Serve. name is for errors and logs.
func WithBackground(name string, run func(ctx context.Context) error) ServeOption {
	return serveOption(func(c *serveConfig) {
		if run == nil {
			c.errs = append(c.errs, fmt.Errorf("WithBackground: the function of %q is nil", name))
		}
		c.background = append(c.background, background{name, run})
	})
}

type background struct {
	name string
	run  func(context.Context) error
}

// startBackground runs all functions and returns a channel for the error of each.
func (s *Server) startBackground(ctx context.Context, all []background) []<-chan error {
	var results []<-chan error
	for _, b := range all {
		done := make(chan error, 1)
		results = append(results, done)
		go func() {
			err := errNotReturned // unless run returns
			defer func() {
				if err != nil {
					if ctx.Err() == nil {
						s.logger.LogAttrs(ctx, slog.LevelError, "background function failed", slog.String("name", b.name), slog.Any("error", err))
					}
					err = fmt.Errorf("%s: %w", b.name, err)
				}
				done <- err
			}()
			if err = b.run(ctx); isErrorOf(ctx, err) {
				err = nil
			}
		}()
	}
	return results
}

var errNotReturned = errors.New("did not return: it panicked or called runtime.Goexit")

// isErrorOf reports whether err is, or wraps, only the error of ctx, which has ended. A
// joined error has others.
func isErrorOf(ctx context.Context, err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if err == ctx.Err() { //nolint:errorlint // errors.Is follows joined errors too
			return true
		}
	}
	return false
}

// waitBackground waits until end for the functions, whose context has ended.
func waitBackground(all []background, results []<-chan error, end time.Time) error {
	timeout := time.NewTimer(time.Until(end))
	defer timeout.Stop()
	expired := false
	var errs []error
	for i, done := range results {
		if !expired {
			select {
			case err := <-done:
				errs = append(errs, err)
				continue
			case <-timeout.C:
				expired = true
			}
		}
		select {
		case err := <-done:
			errs = append(errs, err)
		default:
			errs = append(errs, fmt.Errorf("%s: has not returned although its context ended", all[i].name))
		}
	}
	return errors.Join(errs...)
}

type healthServer struct {
	address string
	start   func(errorLog *log.Logger) httpServer
	lis     net.Listener
	srv     httpServer
}

// httpServer is an [http.Server].
type httpServer interface {
	Serve(net.Listener) error
	Shutdown(context.Context) error
	Close() error
}

// listenHealth listens on all addresses or on none.
func (s *Server) listenHealth(ctx context.Context, all []healthServer) error {
	for i := range all {
		lis, err := new(net.ListenConfig).Listen(ctx, "tcp", all[i].address)
		if err != nil {
			for _, h := range all[:i] {
				h.lis.Close()
			}
			return fmt.Errorf("health: %w", err)
		}
		all[i].lis = lis
	}
	return nil
}

func (s *Server) serveHealth(ctx context.Context, all []healthServer) {
	for i := range all {
		h := &all[i]
		h.srv = h.start(slog.NewLogLogger(s.logger.Handler(), slog.LevelWarn))
		s.logger.LogAttrs(ctx, slog.LevelInfo, "serving health", slog.String("http", h.lis.Addr().String()))
		go func() {
			if err := h.srv.Serve(h.lis); !errors.Is(err, http.ErrServerClosed) {
				s.logger.LogAttrs(ctx, slog.LevelError, "health server failed", slog.String("http", h.address), slog.Any("error", err))
			}
		}()
	}
}

// stopHealth ends the health servers before end.
func stopHealth(all []healthServer, end time.Time) {
	if len(all) == 0 {
		return
	}
	if latest := time.Now().Add(healthStopTimeout); latest.Before(end) {
		end = latest
	}
	ctx, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	for _, h := range all {
		if h.srv.Shutdown(ctx) != nil {
			h.srv.Close()
		}
	}
}
