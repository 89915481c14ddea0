package csispec

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A Violation is one broken rule.
type Violation struct {
	// Field is the path of the field from the message down, as in
	// "volume_capabilities[0].access_mode.mode". It is empty when there is no
	// message at all.
	Field string
	// Rule is a stable identifier of the rule: required, size, utf-8, path-absolute,
	// control-character, oneof, enum, alpha, non-negative, positive, timestamp,
	// capacity-range, secret-key, topology-key, topology-value,
	// topology-preferred, staging-path, plugin-name, capability,
	// group-snapshot, duplicate, camel-case; from CheckCapabilities
	// and CapabilityWarnings capability-unknown, capability-duplicate and capability-missing, and from
	// csiserver.New capability-call; from
	// MetadataStream metadata-type, metadata-capacity, metadata-order,
	// metadata-start, metadata-length and metadata-count; from History
	// constant and topology-prefix.
	Rule string
	// Code is the status code that the specification requires.
	Code codes.Code
	// Text says what is wrong. It never contains the value of a map.
	Text string
}

// Violations is the error of [Validate], [CheckCapabilities], [RoundCapacity],
// [MetadataStream] and [History]: every rule
// that Subject breaks, in the order of its fields. All is never empty. That of Validate
// has at most 256, however many a message breaks.
type Violations struct {
	// Subject names the validated object: the short name of the message, as in
	// "NodePublishVolumeRequest", or "capabilities" or "capacity_range".
	Subject string
	All     []Violation
	// Omitted counts violations that are not in All.
	Omitted int
}

// Limits of the text. A status message is sent in an HTTP/2 header, and clients other than
// Go's reject headers above 8 KiB.
const (
	maxListed = 32
	maxText   = 4 << 10
	// maxKept bounds the memory for a message of millions of empty elements.
	maxKept = 256
)

// Error lists the fields and what is wrong with each, up to 32 of them and 4 KiB.
func (v *Violations) Error() string {
	var b strings.Builder
	b.WriteString("invalid ")
	b.WriteString(v.Subject)
	for i, x := range v.All {
		if i == maxListed || b.Len() > maxText {
			fmt.Fprintf(&b, "; and %d more", len(v.All)-i+v.Omitted)
			break
		}
		if i == 0 {
			b.WriteString(": ")
		} else {
			b.WriteString("; ")
		}
		if x.Field != "" {
			b.WriteString(x.Field)
			b.WriteByte(' ')
		}
		b.WriteString(x.Text)
	}
	return b.String()
}

// GRPCStatus returns the status for the response. INVALID_ARGUMENT takes precedence over
// other codes, because a request has to be well-formed before its state
// matters.
func (v *Violations) GRPCStatus() *status.Status {
	code := codes.InvalidArgument
	for i, x := range v.All {
		if x.Code == codes.InvalidArgument {
			code = x.Code
			break
		}
		if i == 0 {
			code = x.Code
		}
	}
	return status.New(code, v.Error())
}
