// Package csiserver serves a CSI plugin on a unix socket.
//
//   - [Listen] makes the socket: it replaces what a dead process left behind,
//     refuses to disturb a live one, gives the file its mode and group without a
//     moment of more, and makes it anew when it is deleted. [ListenFile] takes one
//     that is listening already.
//   - [New] and [Server.Serve] serve any subset of the five CSI services with
//     an Identity service built in, and stop within a bound when told to.
//   - [RequestIDs], [Logging], [Metrics], [StatusNormalization], [Recovery],
//     [Validation] and [Limits] are the layers around each call. Each is usable by
//     itself in a grpc.Server of your own.
//   - [Server.Health] has /healthz, /readyz and a page that lists the calls in flight;
//     [WithHealth] serves it. [WithBackground] runs a registration with kubelet beside
//     the server.
//
// # Order of the layers
//
// From the outside in:
//
//   - the span of the call, if there is a TracerProvider
//   - its ID: everything below may name it
//   - the log and the list of calls under way: they have every call, and what the
//     caller gets
//   - metrics, if there is a MeterProvider: likewise
//   - status normalization: what comes from further in is made fit for kubelet, the
//     secrets of the request taken out
//   - recovery from panics: of everything below
//   - validation: a malformed request reaches neither a limit, nor a lock, nor the
//     driver; and responses are judged as the driver's interceptors leave them
//   - limits, if there are any: the time of a call, and how many run at once
//   - the interceptors of the driver, locks innermost
//   - the handler
//
// Some part can be had without the others: RequestIDs has to be the outermost of
// those in use, and Recovery and Validation have to be inside of Metrics to be
// counted.
//
// # When not to use it
//
// A process that already has a gRPC server keeps it, and takes the layers it
// wants. csiserver never takes over main: signals, flags and the environment
// (CSI_ENDPOINT) are the program's.
//
// # Concurrency, privileges, kernel
//
// A [Server] is safe for concurrent use and serves once. Nothing here needs
// privileges beyond permission to read and write the directory of the socket, nor a
// particular kernel. A group for the socket needs membership of it, or CAP_CHOWN.
// What Serve could not end keeps a goroutine until it ends by itself: a handler that
// ignores its context, a file system that hangs.
//
// On systems other than Linux concurrent starts on the same socket are not
// serialised, and its mode is set just after it appears.
package csiserver
