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

	// Attributes of volumes have the first three, and this one.
	attrMountOptions = "mountOptions"
)

var volumeParameters = []string{paramServer, paramShare, paramSubDir, paramOnDelete, paramPermissions, paramOwner, paramGroup, paramCopyInUse}

// defaultPermissions lets any user of any pod write, as they can on a file system of
// their own: what keeps others out is that they do not mount the volume.
const defaultPermissions = 0o777

// access is who may use a volume's directory. What is not set is left as it
// comes: as the driver makes it, or as the source of a copy has it.
type access struct {
	Permissions, Owner, Group *uint32
}

// templateKeys are what a subDir may name, and where its value comes from: the
// metadata that external-provisioner adds with --extra-create-metadata.
var templateKeys = map[string]string{
	"pvc.metadata.name":      csispec.ParameterPVCName,
	"pvc.metadata.namespace": csispec.ParameterPVCNamespace,
	"pv.metadata.name":       csispec.ParameterPVName,
}

// planVolume reads the parameters of CreateVolume, and what follows from them and
// the name alone: where the volume is, and so its ID but for the nonce. mountOptions are
// those of the volume's capabilities.
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
	made.Nonce = newNonce() // all are of one length
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

// exportOf reads where an export is, from parameters or from attributes.
func exportOf(m map[string]string, mountOptions []string) (export, error) {
	for _, key := range []string{paramServer, paramShare} {
		if m[key] == "" {
			return export{}, fmt.Errorf("%s is required: it says where the export is, as in server=nas.example.com, share=/srv/volumes", key)
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

// copyInUse tells whether a copy may be made of what changes meanwhile.
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

// expand fills a template. A value is one part of the path, or less: it cannot
// lead out of where the template puts it.
func expand(template string, metadata map[string]string) (string, error) {
	var bad error
	out := templatePart.ReplaceAllStringFunc(template, func(match string) string {
		name := match[2 : len(match)-1]
		key, ok := templateKeys[name]
		switch value := metadata[key]; {
		case bad != nil:
		case !ok:
			bad = fmt.Errorf("subDir %q: there is no %s; what there is: %s", template, match, strings.Join(slices.Sorted(maps.Keys(templateKeys)), ", "))
		case value == "":
			bad = fmt.Errorf("subDir %q: %s is not known; give external-provisioner --extra-create-metadata", template, match)
		case strings.ContainsAny(value, "/${}") || value == "." || value == "..":
			bad = fmt.Errorf("subDir %q: %s is %q, which is not a part of a path", template, match, value)
		default:
			return value
		}
		return ""
	})
	if bad == nil && strings.Contains(out, "${") {
		bad = fmt.Errorf("subDir %q: a ${ without its }", template)
	}
	return out, bad
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}$`)

// defaultSubDir is the volume's name where that makes a good one for a directory.
func defaultSubDir(name string) string {
	if plainName.MatchString(name) {
		return name
	}
	return "vol-" + digest(name)
}

// shorten makes a name of n bytes at most, by putting the digest in the place of its end.
func shorten(name string, n int) string {
	if len(name) <= n {
		return name
	}
	return truncate(name, n-33) + "-" + digest(name)
}

// digest makes a file name of what may hold anything.
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

// ownKeys leaves out the keys that Kubernetes' sidecars and kubelet add to
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
