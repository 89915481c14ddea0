package csiserver

// Error is the error of this package's functions. Errors of calls are gRPC
// statuses instead.
type Error struct {
	// Op is what failed: "listen", "accept", "close", "new" or "serve".
	Op string
	// Object is the endpoint or the name of the plugin.
	Object string
	// Err is the cause.
	Err error
}

func (e *Error) Error() string { return e.Op + " " + e.Object + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
