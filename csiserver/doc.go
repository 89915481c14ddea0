// Package csiserver serves a CSI plugin on a unix socket.
//
//   - [Listen] makes the socket: it replaces what a dead process left behind,
//     refuses to disturb a live one, and gives the file its mode from its first
//     moment.
//   - [New] and [Server.Serve] serve any subset of the five CSI services with
//     an Identity service built in, and stop within a bound when told to.
//   - [RequestIDs], [Logging], [StatusNormalization], [Recovery] and
//     [Validation] are the layers around each call. Each is usable by itself in
//     a grpc.Server of your own.
//
// # Order of the layers
//
// From the outside in: request ID, log, status normalization, recovery from
// panics, validation, the interceptors of the driver, the handler. The log
// therefore shows what the caller gets, and a malformed request reaches neither
// a lock nor the driver.
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
// privileges beyond write permission in the directory of the socket, nor a
// particular kernel. On systems other than Linux concurrent starts on the same
// socket are not serialised, and its mode is set just after it appears.
package csiserver
