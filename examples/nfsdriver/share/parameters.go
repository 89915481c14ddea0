package share

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/examples/nfsdriver/storage"
)

// The parameters of a StorageClass.
const (
	ParamServer      = "server"
	ParamShare       = "share"
	ParamSubDir      = "subDir"           // template; default: the volume's name
	ParamOnDelete    = "onDelete"         // delete (default), retain or archive
	ParamPermissions = "mountPermissions" // octal; default 0777
	ParamOwner       = "owner"            // numeric user ID
	ParamGroup       = "group"            // numeric group ID
	ParamCopyInUse   = "copyInUse"        // of a VolumeSnapshotClass, too: true or false (default)
)

var volumeParameters = []string{ParamServer, ParamShare, ParamSubDir, ParamOnDelete, ParamPermissions, ParamOwner, ParamGroup, ParamCopyInUse}

// DefaultPermissions lets every user in a pod write, as on a file system of its own:
// access is limited by which pods can mount the volume.
const DefaultPermissions = 0o777

// Access holds mode, owner and group of a volume's directory. An unset one stays as
// the driver created it, or as in the source of a copy.
type Access struct {
	Permissions, Owner, Group *uint32
}

// templateKeys maps the variables of a subDir to the keys of their values: the
// metadata that external-provisioner adds with --extra-create-metadata.
var templateKeys = map[string]string{
	"pvc.metadata.name":      csispec.ParameterPVCName,
	"pvc.metadata.namespace": csispec.ParameterPVCNamespace,
	"pv.metadata.name":       csispec.ParameterPVName,
}

// Plan is what a request for a volume asks for.
type Plan struct {
	Ref       VolumeRef // without a nonce
	Access    Access
	CopyInUse bool // accept a copy of a source that changes during the copy
}

// PlanVolume parses the parameters of CreateVolume, and derives from them and the name
// the volume's location, and so its ID except for the nonce. Errors are csierr.Invalid.
func PlanVolume(s storage.VolumeSpec) (Plan, error) {
	ref, access, err := plan(s.Name, s.Parameters, s.Metadata, s.MountFlags)
	if err == nil {
		_, err = MountOptions(ref.Export, s.MountFlags, "") // fail now and not when a pod starts
	}
	var inUse bool
	if err == nil {
		inUse, err = copyInUse(s.Parameters)
	}
	if err != nil {
		return Plan{}, fmt.Errorf("%w: %w", csierr.Invalid, err)
	}
	return Plan{ref, access, inUse}, nil
}

func plan(name string, parameters, metadata map[string]string, mountFlags []string) (VolumeRef, Access, error) {
	var r VolumeRef
	var a Access
	if err := knownKeys("parameters", parameters, volumeParameters); err != nil {
		return r, a, err
	}
	e, err := exportOf(parameters, mountFlags)
	if err != nil {
		return r, a, err
	}
	r = VolumeRef{Export: e, OnDelete: OnDelete(cmp.Or(parameters[ParamOnDelete], string(Delete)))}
	if template := parameters[ParamSubDir]; template != "" {
		if r.SubDir, err = expand(template, metadata); err != nil {
			return r, a, err
		}
	} else {
		r.SubDir = defaultSubDir(name)
	}
	if err := r.Check(); err != nil {
		return r, a, err
	}
	made := r
	made.Nonce = NewNonce() // all have the same length
	if n := len(made.Encode()); n > MaxID {
		return r, a, fmt.Errorf("the volume ID would have %d bytes, and CSI allows %d: use a shorter server or share", n, MaxID)
	}
	for _, number := range []struct {
		key  string
		base int
		max  uint64
		to   **uint32
	}{{ParamPermissions, 8, 0o7777, &a.Permissions}, {ParamOwner, 10, 1<<32 - 2, &a.Owner}, {ParamGroup, 10, 1<<32 - 2, &a.Group}} {
		text := parameters[number.key]
		if text == "" {
			continue
		}
		n, err := strconv.ParseUint(text, number.base, 32)
		if err != nil || n > number.max {
			return r, a, fmt.Errorf("%s %q: want a number of base %d up to %s", number.key, text, number.base, strconv.FormatUint(number.max, number.base))
		}
		v := uint32(n)
		*number.to = &v
	}
	return r, a, nil
}

// PlanCapacity returns the export that the parameters of GetCapacity name; without a name it
// is the zero one. Errors are csierr.Invalid.
func PlanCapacity(parameters map[string]string, mountFlags []string) (Export, error) {
	if parameters[ParamServer] == "" && parameters[ParamShare] == "" {
		return Export{}, nil
	}
	err := knownKeys("parameters", parameters, volumeParameters)
	var e Export
	if err == nil {
		e, err = exportOf(parameters, mountFlags)
	}
	if err != nil {
		return Export{}, fmt.Errorf("%w: %w", csierr.Invalid, err)
	}
	return e, nil
}

// PlanSnapshot parses the parameters of CreateSnapshot. Errors are csierr.Invalid.
func PlanSnapshot(s storage.SnapshotSpec) (inUse bool, err error) {
	err = knownKeys("parameters", s.Parameters, []string{ParamCopyInUse})
	if err == nil {
		inUse, err = copyInUse(s.Parameters)
	}
	if err != nil {
		return false, fmt.Errorf("%w: %w", csierr.Invalid, err)
	}
	return inUse, nil
}

// exportOf returns the export that parameters or attributes describe.
func exportOf(m map[string]string, mountFlags []string) (Export, error) {
	for _, key := range []string{ParamServer, ParamShare} {
		if m[key] == "" {
			return Export{}, fmt.Errorf("%s is required: server and share locate the export, for example server=nas.example.com, share=/srv/volumes", key)
		}
	}
	options, err := essentialOptions(mountFlags)
	if err != nil {
		return Export{}, err
	}
	server := strings.ToLower(m[ParamServer])
	if s, ok := strings.CutPrefix(server, "["); ok {
		server = strings.TrimSuffix(s, "]")
	}
	e := Export{Server: server, Share: m[ParamShare], Options: options}
	return e, e.check()
}

var templatePart = regexp.MustCompile(`\$\{([^}]*)\}`)

// copyInUse parses the parameter that allows copies of a source that changes during the copy.
func copyInUse(parameters map[string]string) (bool, error) {
	switch text := parameters[ParamCopyInUse]; text {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, fmt.Errorf("%s %q: want true or false", ParamCopyInUse, text)
	}
}

// expand expands a template. A value is one path component or a part of one, so it
// cannot leave the directory in which the template puts it.
func expand(template string, metadata map[string]string) (string, error) {
	var bad error
	out := templatePart.ReplaceAllStringFunc(template, func(match string) string {
		name := match[2 : len(match)-1]
		key, ok := templateKeys[name]
		switch value := metadata[key]; {
		case bad != nil:
		case !ok:
			bad = fmt.Errorf("subDir %q: unknown variable %s; known are %s", template, match, strings.Join(slices.Sorted(maps.Keys(templateKeys)), ", "))
		case value == "":
			bad = fmt.Errorf("subDir %q: %s has no value; run external-provisioner with --extra-create-metadata", template, match)
		case strings.ContainsAny(value, "/${}") || value == "." || value == "..":
			bad = fmt.Errorf("subDir %q: %s is %q, which is not a path component", template, match, value)
		default:
			return value
		}
		return ""
	})
	if bad == nil && strings.Contains(out, "${") {
		bad = fmt.Errorf("subDir %q: ${ without }", template)
	}
	return out, bad
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}$`)

// defaultSubDir returns the volume's name if it is a safe directory name, else one with its digest.
func defaultSubDir(name string) string {
	if plainName.MatchString(name) {
		return name
	}
	return "vol-" + Digest(name)
}

// Shorten returns a name of at most n bytes, by replacing its end with its digest.
func Shorten(name string, n int) string {
	if len(name) <= n {
		return name
	}
	n -= 33
	for n > 0 && !utf8.RuneStart(name[n]) {
		n--
	}
	return name[:n] + "-" + Digest(name)
}

// Digest returns a file name derived from an arbitrary text.
func Digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:32]
}

func knownKeys(what string, m map[string]string, known []string) error {
	var unknown []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(known, key) {
			unknown = append(unknown, fmt.Sprintf("%q", key))
		}
	}
	if len(unknown) > 0 {
		return fmt.Errorf("%s: unknown: %s; known are %s", what, strings.Join(unknown, ", "), strings.Join(known, ", "))
	}
	return nil
}
