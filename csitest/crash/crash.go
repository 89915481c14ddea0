package crash

// A Call is a system call that counts.
type Call struct {
	Name   string // as in the manual; "wait4 returned" and "waitid returned" for those
	Object string // the paths as they were passed, or the file behind the descriptor
}

func (c Call) String() string {
	if c.Object == "" {
		return c.Name
	}
	return c.Name + " " + c.Object
}

// An Error is a failure to start or to trace a program.
type Error struct {
	Op   string // start or trace
	Path string // of the program
	Err  error
}

func (e *Error) Error() string { return e.Op + " " + e.Path + ": " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// An Option changes which calls count and what is killed.
type Option interface{ apply(*config) }

type config struct{ tree, reads bool }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// WithKillTree also kills the descendants of the program, as the end of a container
// does. Without it they live on, as after a kill -9 of the driver process only, and the
// test has to wait for them.
func WithKillTree() Option { return optionFunc(func(c *config) { c.tree = true }) }

// WithReads also counts calls that change nothing: open, read, seek and stat of files,
// links, directories and mounts, and ioctls that query a device. It is meant for
// [Process.ArmFailure]; a kill at such a call leaves the same state as a kill at the next
// change.
//
// A Go program whose GOMAXPROCS is not set reads files of its own from time to time.
func WithReads() Option { return optionFunc(func(c *config) { c.reads = true }) }
