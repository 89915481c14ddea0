package share

import (
	"fmt"
	"slices"
	"strings"
)

// Always has the options of every mount.
//
// Mount options come from two sources. Those of the StorageClass or the
// PersistentVolume (mountOptions) are set by an administrator: all are passed on,
// except those that would mount something else. Those in a volume's attributes may be
// set by the author of a pod: only options known to be harmless are accepted.
// nosuid and nodev are always set: a set-user-ID program or a device node that another
// client created as root on the server must not work on this node. An administrator
// overrides them with suid or dev. retry=0 makes mount.nfs try once instead of for two
// minutes: the CO retries the call, and gets the error.
var Always = []string{"nosuid", "nodev", "retry=0"}

// essential are the options that may be needed to reach a server. They are part of the
// volume ID, because DeleteVolume has no other way to get them.
var essential = []string{"minorversion", "mountport", "mountproto", "mountvers", "port", "proto", "sec", "vers"}

// redirecting are the options that make the kernel use another server than the one
// in the volume ID, or mount something else. nodeops refuses more: bind, remount
// and others that do not create exactly one new mount, and bg.
var redirecting = []string{"addr", "clientaddr", "mountaddr", "mounthost", "mountprog", "nfsprog", "source"}

// harmless are the options allowed in a volume's attributes. Those that affect how the server is reached are not.
var harmless = []string{
	"ro", "rw", "nosuid", "nodev", "noexec", "exec", "noatime", "atime", "relatime", "nodiratime", "diratime",
	"hard", "soft", "softerr", "timeo", "retrans", "retry", "rsize", "wsize", "nconnect", "max_connect",
	"ac", "noac", "acregmin", "acregmax", "acdirmin", "acdirmax", "actimeo", "cto", "nocto", "lookupcache",
	"lock", "nolock", "local_lock", "rdirplus", "nordirplus", "acl", "noacl", "sharecache", "nosharecache",
	"resvport", "noresvport", "sync", "async", "_netdev",
}

// groups are sets of mutually exclusive options; an option that is in none only
// contradicts another value of itself.
var groups = map[string]string{
	"rw": "ro", "soft": "hard", "softerr": "hard", "async": "sync", "relatime": "noatime", "atime": "noatime",
	"sharecache": "nosharecache", "resvport": "noresvport", "rdirplus": "nordirplus", "ac": "noac", "cto": "nocto",
	"lock": "nolock", "acl": "noacl", "exec": "noexec", "suid": "nosuid", "dev": "nodev", "diratime": "nodiratime",
}

// canonical returns the canonical name of an option, and its value.
func canonical(option string) (key, value string) {
	key, value, _ = strings.Cut(option, "=")
	if key == "nfsvers" {
		key = "vers"
	}
	if version, ok := strings.CutPrefix(key, "v"); ok && value == "" && version != "" && strings.Trim(version, "0123456789.") == "" {
		return "vers", version // -o v4.2
	}
	return key, value
}

// WithVersion adds vers=4, the newest minor version that both sides support, unless the
// options have a version. Without one, mount.nfs falls back to version 3 after many
// errors (no such directory, an export that was withdrawn): it waits ten seconds for an
// rpc.statd that nodes do not run, and reports only that.
func WithVersion(options []string) []string {
	if slices.ContainsFunc(options, func(o string) bool { key, _ := canonical(o); return key == "vers" }) {
		return options
	}
	return append(options, "vers=4")
}

// splitOptions splits lists of options: "vers=4.1,hard" is two. A quoted value, such as
// a security label, is not split.
func splitOptions(lists []string) []string {
	var all []string
	for _, list := range lists {
		quoted, start := false, 0
		for i := 0; i <= len(list); i++ {
			if i < len(list) && list[i] == '"' {
				quoted = !quoted
			}
			if i == len(list) || list[i] == ',' && !quoted {
				if option := list[start:i]; option != "" {
					all = append(all, option)
				}
				start = i + 1
			}
		}
	}
	return all
}

// MountOptions returns the options for mounting a volume on a node: the fixed ones, then
// the essential ones of the export, then the administrator's, then the attributes'. Options
// that contradict each other are an error.
func MountOptions(e Export, admin []string, attributes string) ([]string, error) {
	admin = splitOptions(admin)
	for _, option := range admin {
		if key, _ := canonical(option); slices.Contains(redirecting, key) {
			return nil, fmt.Errorf("mount option %s: would mount something other than the volume; remove it", key)
		}
	}
	own := splitOptions([]string{attributes})
	for _, option := range own {
		key, value := canonical(option)
		if !slices.Contains(harmless, key) || strings.ContainsAny(value, "\"\\ \t\n") {
			return nil, fmt.Errorf("mount option %q in the volume's attributes: only an administrator may set it, in mountOptions of the StorageClass or the PersistentVolume", key)
		}
	}
	type origin struct{ option, where string }
	seen := map[string]origin{}
	merged := slices.Clone(Always)
	for _, from := range []struct {
		where   string
		options []string
	}{{"the volume's ID", e.OptionList()}, {"mountOptions", admin}, {"the volume's attributes", own}} {
		for _, option := range from.options {
			key, value := canonical(option)
			group, ok := groups[key]
			if !ok {
				group = key
			}
			full := key
			if value != "" {
				full += "=" + value
			}
			before, twice := seen[group]
			if twice && before.option != full {
				return nil, fmt.Errorf("mount options: %s has %s, but %s has %s; remove one", before.where, redact(before.option), from.where, redact(full))
			}
			if !twice {
				seen[group] = origin{full, from.where}
				merged = append(merged, full)
			}
		}
	}
	return WithVersion(merged), nil
}

// redact omits values that must not appear in errors, such as security labels.
func redact(option string) string {
	key, _ := canonical(option)
	if slices.Contains(harmless, key) || slices.Contains(essential, key) {
		return option
	}
	return key
}

// essentialOptions selects and sorts the options that are part of the export.
func essentialOptions(options []string) (string, error) {
	var picked []string
	for _, option := range splitOptions(options) {
		key, value := canonical(option)
		if !slices.Contains(essential, key) {
			continue
		}
		full := key + "=" + value
		for _, other := range picked {
			if otherKey, _ := canonical(other); otherKey == key && other != full {
				return "", fmt.Errorf("mount options: both %s and %s", other, full)
			}
		}
		if value == "" || strings.Trim(value, "0123456789abcdefghijklmnopqrstuvwxyz.:") != "" {
			return "", fmt.Errorf("mount option %s: invalid value %q", key, value)
		}
		if !slices.Contains(picked, full) {
			picked = append(picked, full)
		}
	}
	slices.Sort(picked)
	return strings.Join(picked, ","), nil
}
