package csiserver

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
)

// An Interceptor is one layer around every call, for unary and for streaming
// ones. Hand both functions to grpc.ChainUnaryInterceptor and
// grpc.ChainStreamInterceptor.
type Interceptor struct {
	Unary  grpc.UnaryServerInterceptor
	Stream grpc.StreamServerInterceptor
}

// stream is a ServerStream with another context, and with an eye on what the
// client sends.
type stream struct {
	grpc.ServerStream
	ctx    context.Context
	onRecv func(m any) error
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if s.onRecv == nil {
		return nil
	}
	return s.onRecv(m)
}

// firstMessage remembers the request of a streaming call. It is written by
// whoever receives and read by whoever judges the outcome.
type firstMessage struct{ m atomic.Pointer[any] }

func (f *firstMessage) set(m any) bool { return f.m.CompareAndSwap(nil, &m) }

func (f *firstMessage) get() any {
	if p := f.m.Load(); p != nil {
		return *p
	}
	return nil
}
