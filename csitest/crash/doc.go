// Package crash kills a program at its n-th state-changing system call, or makes that
// call fail.
//
// A driver is crash-safe if a retry converges wherever it was interrupted. To test every
// point, count the calls of one operation, then repeat the operation once per call and kill
// the driver each time right before that call:
//
//	p, _ := crash.Start(driver)
//	p.Arm(n)            // n = 0 only counts
//	...                 // send the request to the driver
//	p.Wait()            // killed, if the operation has n calls
//	...                 // start a new driver, retry, check the state
//
// The n-th call does not run: the program is killed on its entry. To kill it after the last
// call of an operation, add a call outside of it, or use [Process.Kill].
//
// Alternatively the call fails, and the program continues and has to undo what it did:
//
//	p.ArmFailure(n, unix.EIO) // the n-th call does not run and returns EIO
//	...                       // send the request: it fails, or works around the error
//	p.Disarm()
//	...                       // check the state, retry with the same driver
//
// # What counts
//
// Calls that change state outside of the process: creating, writing, truncating, syncing,
// renaming, linking and removing files; their modes, owners, times and extended
// attributes; mounts, with the old and the new system calls; ioctls, except those known to
// only read; starting another process; and the return of a wait for one. In detail:
//
//   - open counts if it may create or truncate;
//   - write, and its relatives, count on regular files and block devices, except
//     on standard output and standard error, where logs go;
//   - clone and fork count unless they create a thread.
//
// With [WithReads], calls that only read count as well.
//
// Not counted: stores into shared mappings, io_uring, and calls of other programs such as
// mkfs. The Go runtime makes no calls that count, except that package os checks for pidfds
// when it first starts a program: have the driver start one before Arm, so that the counts
// are the same from the first operation on.
//
// # When not to use it
//
// Not for performance tests: every system call of the program stops it twice. Not with a
// debugger attached, since a process has only one tracer. Not to simulate a power failure:
// what was written but not synced is still in the page cache. SIGSTOP does not stop a
// traced program.
//
// # Concurrency, privileges and kernel
//
// The methods of a Process are safe for concurrent use. Each Process occupies a thread of
// the test. The program is killed when the test process ends. No privilege is needed if
// children may be traced (kernel.yama.ptrace_scope at most 1). Linux 5.3
// on amd64 and arm64; elsewhere Start returns [errors.ErrUnsupported].
package crash
