package nodelifecycle

import (
	"net/http"
	"strconv"
	"time"
)

// Error is the error of this package's functions.
type Error struct {
	// Op is the operation that failed: "new", "get", "list" or "patch" for a
	// request, "remove taint" or "wait for detach" for what ended unfinished.
	Op string
	// Object is the object of the API, such as "nodes/worker-1".
	Object string
	// Status is the API server's HTTP status, 0 if there was no response.
	Status int
	// Err is the cause.
	Err error

	retryAfter time.Duration
}

func (e *Error) Error() string {
	s := e.Op
	if e.Object != "" {
		s += " " + e.Object
	}
	if e.Status != 0 {
		s += ": " + strconv.Itoa(e.Status)
	}
	s += ": " + e.Err.Error()
	if e.Status == http.StatusForbidden {
		s += "; grant the driver's service account this right"
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
