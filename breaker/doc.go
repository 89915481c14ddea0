// Package breaker isolates a remote server that does not respond: a NAS, the API of an
// array, an iSCSI portal. It does not delay calls for other servers, nor does it occupy a
// growing number of threads.
//
// A [Group] has a circuit breaker for each server that is in use. A call that gets no
// response within the Group's timeout opens it: calls for this server fail immediately,
// and one call at a time, after intervals from 2 seconds to 1 minute, is let through as a
// trial. Any response closes it, including an error such as "no such volume", the late end
// of a call whose callers have returned, and the progress of a copy.
//
// [Group.Do] is for work that cannot be aborted, such as system calls on a file system of
// the server: it runs on its own goroutine, retries join it, and it reports its progress, so
// that a copy that takes an hour is not taken for a server that does not respond.
// [Group.Watch] is for work that returns when its context ends: an HTTP or gRPC request, a
// login program. [Group.Allow] is a check without a call.
//
// # Errors
//
// A call that was refused, and one whose [Server.Probe] failed, has changed nothing: the
// error is an [*Error] with UNAVAILABLE, or DEADLINE_EXCEEDED if the probe timed out. Work
// that has begun and does not respond is an *Error with DEADLINE_EXCEEDED, and continues: it
// has a method Pending() <-chan struct{}, which package volumelock honours. No code is final,
// so the CO repeats the request.
//
// # When not to use it
//
// Not for local devices, which do not fail together: package blocking contains a call that
// hangs. Not to limit the rate of calls to a server that responds. Not as a lock: calls with
// different keys run concurrently. Not to retry: the CO does that.
//
// # Metrics
//
// [Group.Instrument] registers csikit.breaker.state (0 closed, 1 half-open, 2 open) and
// csikit.breaker.parked (calls in flight without a caller), with the attribute server.
//
// # Concurrency, privileges, platforms
//
// All methods are safe for concurrent use. A Group starts one goroutine for each work of Do
// in flight and one for each caller that waits for it, and no other. A server that has not
// been used for an hour is forgotten, so that names from requests do not fill the memory.
// The package needs no privilege and no kernel version, and runs on every platform.
package breaker
