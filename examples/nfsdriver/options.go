package main

import (
	"fmt"
	"slices"
	"strings"
)

// Mount options come from two places. Those of the StorageClass or the
// PersistentVolume (mountOptions) are an administrator's: everything is passed on
// that cannot lead the mount elsewhere. Those in a volume's attributes may be
// those of whoever writes a pod: of them, only what is known to be harmless is
// taken. nosuid and nodev are always set: what another client of the server left
// there as root must not become root, or a disk, on this node. An administrator
// who wants otherwise says suid or dev. mount.nfs tries once, and not for two minutes:
// the CO repeats the call, and is told why.
var always = []string{"nosuid", "nodev", "retry=0"}

// essential are the options without which a server may not be reached. They are a
// part of the volume ID, because DeleteVolume has no other way to know them.
var essential = []string{"minorversion", "mountport", "mountproto", "mountvers", "port", "proto", "sec", "vers"}

// elsewhere are the options that make the kernel talk to another server than the one
// in the volume ID, or mount something else. nodeops refuses more: bind, remount
// and whatever else does not make one new mount, and bg.
var elsewhere = []string{"addr", "clientaddr", "mountaddr", "mounthost", "mountprog", "nfsprog", "source"}

// harmless is what a volume's attributes may ask for. How the server is reached is not.
var harmless = []string{
	"ro", "rw", "nosuid", "nodev", "noexec", "exec", "noatime", "atime", "relatime", "nodiratime", "diratime",
	"hard", "soft", "softerr", "timeo", "retrans", "retry", "rsize", "wsize", "nconnect", "max_connect",
	"ac", "noac", "acregmin", "acregmax", "acdirmin", "acdirmax", "actimeo", "cto", "nocto", "lookupcache",
	"lock", "nolock", "local_lock", "rdirplus", "nordirplus", "acl", "noacl", "sharecache", "nosharecache",
	"resvport", "noresvport", "sync", "async", "_netdev",
}

// groups are options of which one at the most can be meant; what is not in one
// contradicts only another value of itself and its own negation.
var groups = map[string]string{
	"rw": "ro", "soft": "hard", "softerr": "hard", "async": "sync", "relatime": "noatime", "atime": "noatime",
	"sharecache": "nosharecache", "resvport": "noresvport", "rdirplus": "nordirplus", "ac": "noac", "cto": "nocto",
	"lock": "nolock", "acl": "noacl", "exec": "noexec", "suid": "nosuid", "dev": "nodev", "diratime": "nodiratime",
}

// canonical gives an option its one name.
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

// withVersion says which version it is to be, if nobody did: the newest of 4 that both
// sides know. Left alone, mount.nfs takes many a refusal (no such directory, an export
// that was withdrawn) for a reason to try version 3: it waits ten seconds for an rpc.statd
// that nodes do not run, and then complains about that.
func withVersion(options []string) []string {
	if slices.ContainsFunc(options, func(o string) bool { key, _ := canonical(o); return key == "vers" }) {
		return options
	}
	return append(options, "vers=4")
}

// splitOptions takes lists of options apart: "vers=4.1,hard" is two. What is
// quoted, as security labels are, stays whole.
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

// mountOptions is what a volume is mounted with on a node, or why not: first what is
// essential for the export, then the administrator's options, then the
// attributes'. Of two that contradict each other neither is chosen.
func mountOptions(e export, admin []string, attributes string) ([]string, error) {
	admin = splitOptions(admin)
	for _, option := range admin {
		if key, _ := canonical(option); slices.Contains(elsewhere, key) {
			return nil, fmt.Errorf("mount option %s: would mount from somewhere else than the volume says; remove it", key)
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
	merged := slices.Clone(always)
	for _, from := range []struct {
		where   string
		options []string
	}{{"the volume's ID", e.options()}, {"mountOptions", admin}, {"the volume's attributes", own}} {
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
				return nil, fmt.Errorf("mount options: %s says %s, and %s says %s; remove one", before.where, shown(before.option), from.where, shown(full))
			}
			if !twice {
				seen[group] = origin{full, from.where}
				merged = append(merged, full)
			}
		}
	}
	return withVersion(merged), nil
}

// shown keeps values out of errors that are nobody's business, such as labels.
func shown(option string) string {
	key, _ := canonical(option)
	if slices.Contains(harmless, key) || slices.Contains(essential, key) {
		return option
	}
	return key
}

// essentialOptions picks and sorts those that belong to the export.
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
			return "", fmt.Errorf("mount option %s: %q is not a value of it", key, value)
		}
		if !slices.Contains(picked, full) {
			picked = append(picked, full)
		}
	}
	slices.Sort(picked)
	return strings.Join(picked, ","), nil
}
