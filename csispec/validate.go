package csispec

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// Validate returns every rule of CSI v1.13 that m breaks, as a *[Violations]
// error, or nil. Responses are validated by the same
// rules as requests (required, sizes, ranges, topology) with the code INTERNAL, because
// the error is the plugin's; a plugin that has done the work already should log such
// an error rather than return it.
//
// A required bool or number cannot be distinguished from its zero value and is not
// checked. Messages outside the package csi.v1 pass. Rules for more than one
// message are those of [MetadataStream] and [History]. Strings of requests
// are assumed to be valid UTF-8, because the decoder rejects others; a response that is not
// valid UTF-8 cannot be encoded (rule utf-8).
//
// Kubernetes adds entries that begin with csi.storage.k8s.io/ to maps of the
// plugin; they do not count towards the size of a map.
//
// A message that breaks no rule is validated without reflection and without
// allocations. Validate does not change m and is safe for concurrent use.
func Validate(m proto.Message, opts ...Option) error {
	if m == nil {
		return &Violations{Subject: "message", All: []Violation{{
			Rule: "required", Code: codes.InvalidArgument, Text: "is nil",
		}}}
	}
	w := walker{subject: m, utf8: !isRequest(m)}
	for _, o := range opts {
		w.config = o.apply(w.config)
	}
	w.root(m)
	if len(w.found) == 0 {
		return nil
	}
	name := string(m.ProtoReflect().Descriptor().Name())
	code := codes.InvalidArgument
	if strings.HasSuffix(name, "Response") {
		code = codes.Internal
	}
	for i := range w.found {
		if w.found[i].Code == codes.OK {
			w.found[i].Code = code
		}
	}
	return &Violations{Subject: name, All: w.found, Omitted: w.omitted}
}

func isRequest(m proto.Message) bool {
	return strings.HasSuffix(string(m.ProtoReflect().Descriptor().Name()), "Request")
}

// A walker validates one message, in the generated method for its type, and
// collects violations. It keeps the steps to the current message, so that
// a path is built only for a violation.
type walker struct {
	config
	subject proto.Message
	utf8    bool // is checked
	steps   [maxDepth]step
	depth   int
	found   []Violation
	omitted int  // not in found, which has maxKept
	invalid bool // found has one with InvalidArgument
}

// A step is the field of a message that holds the next one.
type step struct {
	field string
	index int // in a list, else -1
}

func (w *walker) enter(field string) {
	w.steps[w.depth] = step{field, -1}
	w.depth++
}

func (w *walker) enterAt(field string, i int) {
	w.steps[w.depth] = step{field, i}
	w.depth++
}

func (w *walker) leave() { w.depth-- }

// path returns the path of a field of the current message, or of the message
// itself if field is empty.
func (w *walker) path(field string) string {
	var b strings.Builder
	for _, s := range w.steps[:w.depth] {
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(s.field)
		if s.index >= 0 {
			fmt.Fprintf(&b, "[%d]", s.index)
		}
	}
	if b.Len() > 0 && field != "" {
		b.WriteByte('.')
	}
	b.WriteString(field)
	return b.String()
}

// add reports a violation with the default code of Validate.
func (w *walker) add(field, rule, format string, args ...any) {
	w.addCode(codes.OK, field, rule, format, args...)
}

func (w *walker) addCode(code codes.Code, field, rule, format string, args ...any) {
	invalid := code == codes.OK || code == codes.InvalidArgument
	if len(w.found) == maxKept {
		if w.omitted++; !invalid || w.invalid {
			return
		}
		w.found = w.found[:maxKept-1] // for the code of the whole
	}
	w.invalid = w.invalid || invalid
	w.found = append(w.found, Violation{Field: w.path(field), Rule: rule, Code: code, Text: fmt.Sprintf(format, args...)})
}
