package main

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

	"github.com/csikit/csikit/csispec"
)

// The parameters of a StorageClass.
const (
	paramServer      = "server"
	paramShare       = "share"
	paramSubDir      = "subDir"           // template; default: the volume's name
	paramOnDelete    = "onDelete"         // delete (default), retain or archive
	paramPermissions = "mountPermissions" // octal; default 0777
	paramOwner       = "owner"            // numeric user ID
	paramGroup       = "group"            // numeric group ID
	paramCopyInUse   = "copyInUse"        // of a VolumeSnapshotClass, too: true or false (default)

	// A volume's attributes have the first three, and this one.
	attrMountOptions = "mountOptions"
)

var volumeParameters = []string{paramServer, paramShare, paramSubDir, paramOnDelete, paramPermissions, paramOwner, paramGroup, paramCopyInUse}

// defaultPermissions lets every user in a pod write, as on a file system of its own:
// access is limited by which pods can mount the volume.
const defaultPermissions = 0o777

// access holds mode, owner and group of a volume's directory. An unset one stays as
// the driver created it, or as in the source of a copy.
type access struct {
	Permissions, Owner, Group *uint32
}

// templateKeys maps the variables of a subDir to the keys of their values: the
// metadata that external-provisioner adds with --extra-create-metadata.
var templateKeys = map[string]string{
	"pvc.metadata.name":      csispec.ParameterPVCName,
	"pvc.metadata.namespace": csispec.ParameterPVCNamespace,
	"pv.metadata.name":       csispec.ParameterPVName,
}

// planVolume parses the parameters of CreateVolume, and derives from them and the name
// the volume's location, and so its ID except for the nonce. mountOptions are those of
// the volume's capabilities.
func planVolume(name string, parameters map[string]string, mountOptions []string) (volumeRef, access, error) {
	var r volumeRef
	var a access
	if err := knownKeys("parameters", parameters, volumeParameters); err != nil {
		return r, a, err
	}
	e, err := exportOf(parameters, mountOptions)
	if err != nil {
		return r, a, err
	}
	r = volumeRef{export: e, OnDelete: onDelete(cmp.Or(parameters[paramOnDelete], string(deleteDir)))}
	if template := parameters[paramSubDir]; template != "" {
		if r.SubDir, err = expand(template, parameters); err != nil {
			return r, a, err
		}
	} else {
		r.SubDir = defaultSubDir(name)
	}
	if err := r.check(); err != nil {
		return r, a, err
	}
	made := r
	made.Nonce = newNonce() // all have the same length
	if n := len(made.encode()); n > maxID {
		return r, a, fmt.Errorf("the volume ID would have %d bytes, and CSI allows %d: use a shorter server or share", n, maxID)
	}
	for _, number := range []struct {
		key  string
		base int
		max  uint64
		to   **uint32
	}{{paramPermissions, 8, 0o7777, &a.Permissions}, {paramOwner, 10, 1<<32 - 2, &a.Owner}, {paramGroup, 10, 1<<32 - 2, &a.Group}} {
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

// exportOf returns the export that parameters or attributes describe.
func exportOf(m map[string]string, mountOptions []string) (export, error) {
	for _, key := range []string{paramServer, paramShare} {
		if m[key] == "" {
			return export{}, fmt.Errorf("%s is required: server and share locate the export, for example server=nas.example.com, share=/srv/volumes", key)
		}
	}
	options, err := essentialOptions(mountOptions)
	if err != nil {
		return export{}, err
	}
	server := strings.ToLower(m[paramServer])
	if s, ok := strings.CutPrefix(server, "["); ok {
		server = strings.TrimSuffix(s, "]")
	}
	e := export{Server: server, Share: m[paramShare], Options: options}
	return e, e.check()
}

var templatePart = regexp.MustCompile(`\$\{([^}]*)\}`)

// copyInUse parses the parameter that allows copies of a source that changes during the copy.
func copyInUse(parameters map[string]string) (bool, error) {
	switch text := parameters[paramCopyInUse]; text {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, fmt.Errorf("%s %q: want true or false", paramCopyInUse, text)
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
	return "vol-" + digest(name)
}

// shorten returns a name of at most n bytes, by replacing its end with its digest.
func shorten(name string, n int) string {
	if len(name) <= n {
		return name
	}
	return truncate(name, n-33) + "-" + digest(name)
}

// digest returns a file name derived from an arbitrary text.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:32]
}

func knownKeys(what string, m map[string]string, known []string) error {
	var unknown []string
	for _, key := range slices.Sorted(maps.Keys(ownKeys(m))) {
		if !slices.Contains(known, key) {
			unknown = append(unknown, fmt.Sprintf("%q", key))
		}
	}
	if len(unknown) > 0 {
		return fmt.Errorf("%s: unknown: %s; known are %s", what, strings.Join(unknown, ", "), strings.Join(known, ", "))
	}
	return nil
}

// ownKeys omits the keys that Kubernetes' sidecars and kubelet add to
// parameters and attributes.
func ownKeys(m map[string]string) map[string]string {
	own := map[string]string{}
	for key, value := range m {
		if !csispec.IsKubernetesKey(key) {
			own[key] = value
		}
	}
	return own
}
