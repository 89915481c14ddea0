package csiserver

import (
	"time"

	"google.golang.org/grpc"
)

// WithAnswerTimeout shortens the wait for a silent owner of a socket.
func WithAnswerTimeout(d time.Duration) ListenOption {
	return listenOption(func(c *listenConfig) { c.answerTimeout = d })
}

// WithLockTimeout shortens the wait for another process on the same socket.
func WithLockTimeout(d time.Duration) ListenOption {
	return listenOption(func(c *listenConfig) { c.lockTimeout = d })
}

// WithListenTimeout shortens the wait for a file system that hangs.
func WithListenTimeout(d time.Duration) ListenOption {
	return listenOption(func(c *listenConfig) { c.listenTimeout = d })
}

// WithFileInterval shortens the time between two looks at the socket file.
func WithFileInterval(d time.Duration) ListenOption {
	return listenOption(func(c *listenConfig) { c.fileCheckInterval = d })
}

// SunPathMax is the limit that Listen applies.
const SunPathMax = sunPathMax

// Chain is how a Server chains its interceptors.
func Chain(interceptors []Interceptor) grpc.UnaryServerInterceptor {
	var unary []grpc.UnaryServerInterceptor
	for _, l := range interceptors {
		unary = append(unary, l.Unary)
	}
	return chain(unary)
}
