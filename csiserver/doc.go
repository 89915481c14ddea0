// Package csiserver serves a CSI plugin on a unix socket.
//
//   - [Listen] creates the socket: it replaces a stale socket file, never one that a
//     running process serves; the file has its mode and group from creation, never
//     more permissive than configured; and it is recreated when it is deleted.
//     [ListenFile] takes a socket that is listening already.
//   - [New] and [Server.Serve] serve any subset of the five CSI services with
//     an Identity service built in, and stop within a bound when the context ends.
//   - [RequestIDs], [Logging], [Metrics], [StatusNormalization], [Recovery],
//     [Validation] and [Limits] are the interceptors around each call. Each works
//     alone in a grpc.Server of your own.
//   - [Server.Health] has /healthz, /readyz and a page that lists the calls in flight;
//     [WithHealth] serves it. [WithBackground] runs a registration with kubelet beside
//     the server.
//
// # Order of the interceptors
//
// From the outside in:
//
//   - the span of the call, if there is a TracerProvider
//   - its request ID: everything below may name it
//   - the log and the list of calls in flight: they have every call, and the status
//     that the caller gets
//   - metrics, if there is a MeterProvider: likewise
//   - status normalization: errors get the codes that kubelet expects, and the secrets
//     of the request are removed
//   - recovery from panics of everything below
//   - validation: a malformed request reaches neither a limit, nor a lock, nor the
//     driver; responses are validated as the driver's interceptors return them
//   - limits, if there are any: the duration of a call, and how many run concurrently
//   - the interceptors of the driver, locks innermost
//   - the handler
//
// A server of your own may use only some of them: RequestIDs has to be the outermost of
// those in use, and Recovery and Validation have to be inside of Metrics to be
// counted.
//
// # When not to use it
//
// A process that already has a gRPC server keeps it, and uses the interceptors it
// needs. csiserver never takes over main: signals, flags and the environment
// (CSI_ENDPOINT) are the program's.
//
// # Concurrency, privileges, kernel
//
// A [Server] is safe for concurrent use and serves once. Nothing here needs
// privileges beyond permission to read and write the directory of the socket, nor a
// particular kernel. A group for the socket needs membership of it, or CAP_CHOWN.
// After Serve has returned, a goroutine remains for whatever does not end: a handler
// that ignores its context, a file system that hangs.
//
// On systems other than Linux concurrent starts on the same socket are not
// serialised, and its mode is set just after its creation.
package csiserver
