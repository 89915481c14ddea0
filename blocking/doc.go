// Package blocking runs calls that the kernel may never return from: mount,
// umount, statfs, open and fsync on a dead server or a frozen file system.
//
// Such a call cannot be cancelled. What can be done is to keep it from taking
// anything else along: a [Group] runs it on its own goroutine, lets its caller
// go when the context ends, keeps the call listed until it really returns, and
// lets a retry join it in place of starting a second one beside it.
//
// # When not to use it
//
// Not for work that honours a context (an HTTP call, a program that can be
// killed): cancel that. Not as a cache: a result is given to those who wait for
// it and then forgotten. Not as a lock: two keys never exclude each other, and
// the lock that covers the work has to stay held while the work is parked (an
// error with a Pending method says so, and package volumelock understands it).
//
// # Concurrency, privileges, platforms
//
// All methods may be called at the same time. A Group starts one goroutine per
// call under way and none besides. No privilege and no kernel version is
// needed; the package is plain Go for every platform.
package blocking
