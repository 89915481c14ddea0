package csitest

import (
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
)

// Causes returns the results that failed, in groups of one cause each: an RPC that several rules
// call, and that fails for all of them with the same code and message, or that ends the
// driver. Values in messages, such as IDs, paths and numbers, may differ. Any other result is a group of its
// own. The groups are in the order of their first rules, rules of level MUST first within each.
func (r *Report) Causes() [][]Result {
	var groups [][]Result
	at := map[string]int{}
	for _, x := range r.ResultsWith(Failed) {
		cause := x.cause()
		i, known := at[cause]
		if !known || cause == "" {
			i = len(groups)
			at[cause] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], x)
	}
	for _, g := range groups {
		slices.SortStableFunc(g, func(a, b Result) int { return a.rank() - b.rank() })
	}
	return groups
}

// rank puts what counts first.
func (x Result) rank() int {
	switch {
	case x.Known:
		return 2
	case x.Rule.Level == Should:
		return 1
	}
	return 0
}

// cause is what other results of the same cause have in common; it is empty if nothing tells.
func (x Result) cause() string {
	for _, f := range x.Failures {
		switch {
		case f.Call == nil && f.Want == keepsRunning:
			return "exited " + panicLine(f.Got)
		case f.Call == nil || f.Call.Code() == codes.OK || f.Got != f.Call.responseText():
			continue // the rule found something else than the error
		case slices.Contains([]codes.Code{codes.Unavailable, codes.Canceled, codes.DeadlineExceeded}, f.Call.Code()):
			return f.Call.Method + " is not answered" // the message is gRPC's
		}
		return f.Call.Method + " " + f.Call.Code().String() + " " + messageValues.ReplaceAllString(f.Call.Status.Message(), "…")
	}
	return ""
}

// messageValues are what differs between messages that come from one line of a driver.
var messageValues = regexp.MustCompile("\"[^\"]*\"|'[^']*'|`[^`]*`|/\\S+|\\S*[0-9]\\S*")

// panicLine is the line in the end of a log that says why a process ended, or the first.
func panicLine(log string) string {
	first, _, _ := strings.Cut(log, "\n")
	for line := range strings.Lines(log) {
		if strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") {
			first = line
			break
		}
	}
	return messageValues.ReplaceAllString(strings.TrimSpace(first), "…")
}
