// Package blocking runs calls that may block in the kernel indefinitely: mount, umount,
// statfs, open and fsync on a server that does not respond or a frozen file system.
//
// Such a call cannot be cancelled, but it can be contained: a [Group] runs it on its own
// goroutine, returns to the caller when the context ends, lists the call as in flight until
// it returns, and lets a retry join it instead of starting a second one.
//
// # When not to use it
//
// Not for calls that honour a context (an HTTP request, a program that can be killed):
// cancel those. Not as a cache: a result goes to the callers that wait for it and is then
// dropped. Not as a lock: two keys never exclude each other, and a lock that covers the
// call has to stay held while the call is parked, that is in flight without a caller (an
// error with a Pending method indicates that, and package volumelock honours it).
//
// # Concurrency, privileges, platforms
//
// All methods are safe for concurrent use. A Group starts one goroutine per call in flight
// and no other. It needs no privilege and no kernel version, and runs on every platform.
package blocking
