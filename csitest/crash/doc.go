// Package crash kills a program at its n-th state-changing system call, or makes that
// call fail.
//
// A driver is crash-safe if, wherever it dies, the next attempt converges. To try
// every place, count the calls of one operation, then repeat the operation once per
// call and kill the driver each time right before that one:
//
//	p, _ := crash.Start(driver)
//	p.Arm(n)            // n = 0 only counts
//	...                 // ask the driver for the operation
//	p.Wait()            // killed, if the operation has n calls
//	...                 // start a new driver, ask again, check what is there
//
// The call that is due does not run: the program is killed on its entry. To be
// killed behind the last call of an operation, add one that is outside, or kill
// the program by hand.
//
// The other thing that happens to a call is that it fails, and the program lives on
// to undo what it did:
//
//	p.ArmFailure(n, unix.EIO) // the n-th call does not run and returns EIO
//	...                       // ask for the operation: it fails, or has got around it
//	p.Disarm()
//	...                       // check what is there, ask the same driver again
//
// # What counts
//
// Calls that change what outlives the process: creating, writing, truncating, syncing,
// renaming, linking and removing files; their modes, owners, times and extended
// attributes; mounts, old interface and new; ioctls, but for those known to read only;
// starting another process; and the return of a wait for one. In detail:
//
//   - open counts if it may create or truncate;
//   - write, and its relatives, count on regular files and block devices, except
//     on standard output and standard error, where logs go;
//   - clone and fork count unless they make a thread.
//
// With [CountReads], calls that only read count as well.
//
// What happens otherwise is not seen: stores into shared mappings, io_uring, and what
// other programs do, such as mkfs. The Go runtime makes no calls that
// count, except that package os tries the kernel's pidfds when it first starts
// a program: have the driver start one before Arm, for counts that agree from
// the first operation on.
//
// # When not to use it
//
// Not for performance: every system call of the program stops it twice. Not
// with a debugger attached, which excludes another tracer. Not to simulate a power
// failure: what was written but not synced is still in the page cache. SIGSTOP does
// not stop a traced program.
//
// # Concurrency, privileges and kernel
//
// The methods of a Process may be called from any goroutine. Each Process
// occupies a thread of the test. The program dies with the test. No privilege is
// needed where children may be traced (kernel.yama.ptrace_scope at most 1). Linux 5.3
// on amd64 and arm64; elsewhere Start returns [errors.ErrUnsupported].
package crash
