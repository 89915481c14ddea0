package csispec

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// General size limits of the specification, in bytes.
const (
	stringMax = 128
	mapMax    = 4096
	// pathMax is PATH_MAX of Linux without the terminating zero: the specification lifts
	// the general limit of 128 for paths, up to what the system can open.
	pathMax = 4095
)

// textRule is a set of rules for a string, in addition to the size limit.
type textRule uint8

const (
	required textRule = 1 << iota
	absolutePath
	lenientPath // may be relative with WithRelativeVolumePathAllowed
	noControls
)

func (w *walker) missing(field string) { w.add(field, "required", "is required") }

func (w *walker) missingOneof(oneof, fields string) {
	if !w.allowUnknown {
		w.add(oneof, "oneof", "needs exactly one of %s", fields)
	}
}

func (w *walker) text(field, v string, limit int, r textRule) {
	if v == "" {
		if r&required != 0 {
			w.missing(field)
		}
		return
	}
	if len(v) > limit {
		w.add(field, "size", "is %d bytes long, the limit is %d", len(v), limit)
	}
	if w.utf8 && !utf8.ValidString(v) {
		w.notUTF8(field)
	}
	if r&^required != 0 {
		w.characters(field, v, r)
	}
}

// notUTF8 reports a string that cannot be sent: proto3 rejects it.
func (w *walker) notUTF8(field string) { w.add(field, "utf-8", "is not valid UTF-8") }

func (w *walker) characters(field, v string, r textRule) {
	if r&absolutePath != 0 && !absolute(v) && !(r&lenientPath != 0 && w.relativeVolumePath) {
		w.add(field, "path-absolute", "is %s and must be an absolute path", quote(v))
	} else if r&absolutePath != 0 && strings.ContainsRune(v, 0) {
		w.add(field, "path-absolute", "is %s and must not contain a NUL byte", quote(v))
	}
	if r&noControls != 0 {
		for _, c := range v {
			if isControl(c) {
				w.add(field, "control-character", "contains the control character %U", c)
				break
			}
		}
	}
}

// texts validates the elements of a list; required means that none is empty.
func (w *walker) texts(field string, vs []string, limit int, r textRule) {
	for i, v := range vs {
		if v == "" && r&required != 0 {
			w.add(w.index(field, i), "required", "is empty")
		}
		if len(v) > limit || w.utf8 && !utf8.ValidString(v) {
			w.text(w.index(field, i), v, limit, 0)
		}
	}
}

// total validates a list with one limit for the sum of its elements.
func (w *walker) total(field string, vs []string, limit int) {
	size := 0
	for i, v := range vs {
		size += len(v)
		if w.utf8 && !utf8.ValidString(v) {
			w.notUTF8(w.index(field, i))
		}
	}
	if size > limit {
		w.add(field, "size", "holds %d bytes, the limit is %d", size, limit)
	}
}

func (w *walker) stringMap(field string, m map[string]string) {
	size, valid := 0, true
	for k, v := range m {
		valid = valid && (!w.utf8 || utf8.ValidString(k) && utf8.ValidString(v))
		if !strings.HasPrefix(k, KubernetesPrefix) {
			size += len(k) + len(v)
		}
	}
	w.mapSize(field, size, valid)
}

func (w *walker) secretMap(field string, m map[string]string) {
	size, badKeys, valid := 0, 0, true
	for k, v := range m {
		valid = valid && (!w.utf8 || utf8.ValidString(k) && utf8.ValidString(v))
		if strings.HasPrefix(k, KubernetesPrefix) {
			continue
		}
		size += len(k) + len(v)
		if !secretKey(k) {
			badKeys++
		}
	}
	if w.largeSecrets {
		size = 0
	}
	w.mapSize(field, size, valid)
	if badKeys > 0 {
		// The keys are not printed: a user may have put the secret there.
		w.add(field, "secret-key", "has %d keys with characters other than letters, digits, '-', '_' and '.'", badKeys)
	}
}

func (w *walker) mapSize(field string, size int, valid bool) {
	if !valid {
		w.add(field, "utf-8", "has a key or value that is not valid UTF-8")
	}
	if size > mapMax {
		w.add(field, "size", "holds %d bytes of keys and values, the limit is %d", size, mapMax)
	}
}

// enum validates a value against the sets of declared and of alpha values.
func (w *walker) enum(field string, v int32, declared, alpha uint64, needed bool) {
	var bit uint64
	if v >= 0 && v < 64 {
		bit = 1 << v
	}
	switch {
	case v == 0 && needed:
		w.missing(field)
	case declared&bit == 0 && !w.allowUnknown:
		w.add(field, "enum", "has the value %d, which CSI v1.13 does not declare", v)
	case alpha&bit != 0 && w.refuseAlpha:
		w.add(field, "alpha", "has the value %d, which is alpha in CSI v1.13 and not accepted here", v)
	}
}

func (w *walker) nonNegative(field string, v int64) {
	if v < 0 {
		w.add(field, "non-negative", "is %d and must not be negative", v)
	}
}

func (w *walker) positive(field string, v int64) {
	if v <= 0 {
		w.add(field, "positive", "is %d and must be greater than zero", v)
	}
}

// offset is nonNegative with the code in the error tables of both SnapshotMetadata calls.
func (w *walker) offset(field string, v int64) {
	if v < 0 {
		w.addCode(codes.OutOfRange, field, "non-negative", "is %d and must not be negative", v)
	}
}

func (w *walker) timestamp(field string, t *timestamppb.Timestamp, needed bool) {
	if t == nil {
		if needed {
			w.missing(field)
		}
		return
	}
	if err := t.CheckValid(); err != nil {
		w.add(field, "timestamp", "is not between the years 1 and 9999")
	}
}

func (w *walker) alphaField(field string) {
	w.add(field, "alpha", "is alpha in CSI v1.13 and not accepted here")
}

func (w *walker) alphaCall() {
	w.addCode(codes.Unimplemented, "", "alpha", "belongs to a call that is alpha in CSI v1.13 and not served here")
}

// isControl reports whether a character is banned from names: control characters other
// than TAB, LF and CR.
func isControl(c rune) bool {
	switch c {
	case '\t', '\n', '\r':
		return false
	}
	return c < 0x20 || c >= 0x7f && c <= 0x9f
}

// absolute also accepts a path without a drive letter on Windows, because the
// kubelet there sends such paths.
func absolute(p string) bool {
	return os.IsPathSeparator(p[0]) || filepath.IsAbs(p)
}

// secretKey reports whether a key of a secrets map has the required charset.
func secretKey(k string) bool {
	for i := range len(k) {
		if c := k[i]; !alnum(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return k != ""
}

func alnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// index is the path of a list's element, or empty if no further violation is kept.
func (w *walker) index(field string, i int) string {
	if len(w.found) == maxKept {
		return ""
	}
	return index(field, i)
}

func index(field string, i int) string { return fmt.Sprintf("%s[%d]", field, i) }

// quote quotes s for an error text, truncated.
func quote(s string) string {
	const enough = 128
	if len(s) > enough {
		return strconv.Quote(s[:enough]) + "..."
	}
	return strconv.Quote(s)
}
