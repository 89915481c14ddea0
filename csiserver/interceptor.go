package csiserver

import (
	"context"
	"log/slog"
	"time"

	"github.com/csikit/csikit/csispec"
	"google.golang.org/grpc"
)

// An Interceptor wraps every call, unary and streaming. Pass it to [WithInterceptors],
// or its functions to grpc.ChainUnaryInterceptor and grpc.ChainStreamInterceptor.
type Interceptor struct {
	Unary  grpc.UnaryServerInterceptor
	Stream grpc.StreamServerInterceptor
}

// An InterceptorOption configures the interceptors of this package: those of a [Server]
// if passed to [New], else the one to whose constructor it is passed. An interceptor
// ignores options that do not concern it.
type InterceptorOption interface {
	Option
	applyInterceptor(*interceptorConfig)
}

type interceptorConfig struct {
	redactKeys          []string
	slow                time.Duration
	level               func(fullMethod string) slog.Level
	validation          []csispec.Option
	requests, responses ValidationMode
}

type interceptorOption func(*interceptorConfig)

func (o interceptorOption) apply(c *config)                       { o(&c.interceptorConfig) }
func (o interceptorOption) applyInterceptor(c *interceptorConfig) { o(c) }

func defaultInterceptorConfig() interceptorConfig {
	return interceptorConfig{slow: defaultSlow, level: defaultLevel, requests: ValidationEnforce, responses: ValidationWarn}
}

func newInterceptorConfig(opts []InterceptorOption) interceptorConfig {
	c := defaultInterceptorConfig()
	for _, o := range opts {
		o.applyInterceptor(&c)
	}
	return c
}

// WithRedactedKeys masks further map entries in logs and errors by their key,
// whatever map they are in: see [csispec.Redact].
func WithRedactedKeys(keys ...string) InterceptorOption {
	return interceptorOption(func(c *interceptorConfig) { c.redactKeys = append(c.redactKeys, keys...) })
}

// stream is a ServerStream with another context and with hooks for the messages
// received and sent, which may be nil.
type stream struct {
	grpc.ServerStream
	ctx    context.Context
	onRecv func(m any) error
	onSend func(m any) error
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil || s.onRecv == nil {
		return err
	}
	return s.onRecv(m)
}

func (s *stream) SendMsg(m any) error {
	if s.onSend != nil {
		if err := s.onSend(m); err != nil {
			return err
		}
	}
	return s.ServerStream.SendMsg(m)
}
