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

// An Error says what failed: start or trace.
type Error struct {
	Op   string
	Path string // of the program
	Err  error
}

func (e *Error) Error() string { return e.Op + " " + e.Path + ": " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// An Option changes how a program is killed.
type Option interface{ apply(*config) }

type config struct{ tree, reads bool }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// KillTree kills the programs that the program has started as well, and theirs,
// as the end of a container does. Without it they live on, as behind a kill -9 of
// only the driver, and are the test's to wait for.
func KillTree() Option { return optionFunc(func(c *config) { c.tree = true }) }

// CountReads counts the calls that only read as well: to open, read, seek and stat
// files, links, directories and mounts, and to ask a device by ioctl. That is for
// [Process.ArmFailure]; a kill there leaves what a kill at the next change leaves.
//
// A Go program whose GOMAXPROCS is not set reads its own files from time to time.
func CountReads() Option { return optionFunc(func(c *config) { c.reads = true }) }
