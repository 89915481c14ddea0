package registration

// Error is the error of this package's functions.
type Error struct {
	// Op is the operation that failed: "new", "serve" or "stop".
	Op string
	// Driver is the name of the driver.
	Driver string
	// Err is the cause.
	Err error
}

func (e *Error) Error() string { return e.Op + " registration of " + e.Driver + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
