package csispec

import (
	"log/slog"
	"slices"

	"google.golang.org/protobuf/proto"
)

const (
	mask = "***stripped***"
	// tokensKey has no csi_secret option, which made drivers log tokens (CVE-2023-2878,
	// CVE-2024-3744).
	tokensKey = VolumeContextServiceAccountTokens
)

// Redacted renders a message without its secrets. It computes nothing until it is printed,
// and it refers to the message instead of copying it: print it before the
// message changes. It implements [slog.LogValuer] and [fmt.Stringer].
type Redacted struct {
	message proto.Message
	keys    []string
}

// Redact prepares m for a log. The rendered text has a mask in place of
//
//   - every field with the csi_secret option,
//   - every map entry, at any depth, whose key is one of keys or Kubernetes'
//     csi.storage.k8s.io/serviceAccount.tokens,
//   - the value of every mount flag that carries a credential, such as
//     password=, credentials=, secret= or token=, together with the rest of
//     the same flag, or as --password and then the value; a user name,
//     as in username=, and the user information of a URL.
//
// Fields that this version of CSI does not declare are omitted.
func Redact(m proto.Message, keys ...string) Redacted {
	return Redacted{message: m, keys: keys}
}

func (r Redacted) isNil() bool { return r.message == nil || !r.message.ProtoReflect().IsValid() }

// String renders the message as one line of JSON with the names of the proto
// fields, in their order, and with map keys sorted.
func (r Redacted) String() string {
	if r.isNil() {
		return "null"
	}
	j := newJSON(r.keys)
	j.begin()
	visit(j, r.message)
	j.end()
	return j.done()
}

// LogValue renders the message as a group with the names of the proto fields.
func (r Redacted) LogValue() slog.Value {
	if r.isNil() {
		return slog.AnyValue(nil)
	}
	g := newGroup(r.keys)
	visit(g, r.message)
	return g.end()
}

func masked(key string, keys []string) bool {
	return key == tokensKey || slices.Contains(keys, key)
}

// sortedKeys appends the sorted keys of m to to, which may have capacity on the stack.
func sortedKeys(to []string, m map[string]string) []string {
	for k := range m {
		to = append(to, k)
	}
	slices.Sort(to)
	return to
}
