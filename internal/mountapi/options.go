package mountapi

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrOption is returned when a file system refuses a mount option.
var ErrOption = errors.New("mount option refused")

// Attr is a set of per-mount attributes.
type Attr uint32

// The attributes that belong to a mount rather than to its superblock, see
// mount_setattr(2).
const (
	ReadOnly Attr = 1 << iota
	NoSuid
	NoDev
	NoExec
	NoAtime
	StrictAtime
	NoDirAtime
	NoSymFollow
)

var attrNames = []struct {
	attr    Attr
	on, off string
}{
	{ReadOnly, "ro", "rw"},
	{NoSuid, "nosuid", "suid"},
	{NoDev, "nodev", "dev"},
	{NoExec, "noexec", "exec"},
	{NoAtime, "noatime", "atime"},
	{StrictAtime, "strictatime", ""},
	{NoDirAtime, "nodiratime", "diratime"},
	{NoSymFollow, "nosymfollow", ""},
}

func (a Attr) String() string {
	var on []string
	for _, n := range attrNames {
		if a&n.attr != 0 {
			on = append(on, n.on)
		}
	}
	return strings.Join(on, ",")
}

// With returns the attributes of a mount that has a, after more is added, as [CloneTree] does.
func (a Attr) With(more Attr) Attr {
	if more&(NoAtime|StrictAtime) != 0 {
		a &^= NoAtime | StrictAtime
	}
	return a | more
}

// Options are mount flags as a CO sends them, split into those of the mount and those of
// the file system.
type Options struct {
	Attr Attr     // attributes of the mount itself
	Data []string // options of the file system, "key=value" or "key"
}

// ParseOptions reads mount flags: each element is one option or a
// comma-separated list; a comma inside double quotes does not separate, and the
// quotes are dropped (kubelet sends context="system_u:object_r:t:s0:c1,c2").
// Of contradicting options the last one counts. Words that only mount(8) and fstab(5)
// use are dropped; those that ask for something other than one new mount
// (bind, remount, shared, ...) are an error.
func ParseOptions(flags []string) (Options, error) {
	var o Options
	for _, flag := range flags {
		words, err := splitOptions(flag)
		if err != nil {
			return Options{}, err
		}
		for _, w := range words {
			if err := o.add(w); err != nil {
				return Options{}, err
			}
		}
	}
	return o, nil
}

func (o *Options) add(word string) error {
	for _, n := range attrNames {
		switch word {
		case n.on:
			o.Attr |= n.attr
			switch n.attr {
			case NoAtime:
				o.Attr &^= StrictAtime
			case StrictAtime:
				o.Attr &^= NoAtime
			}
			return nil
		case n.off:
			o.Attr &^= n.attr
			return nil
		}
	}
	key, _, valued := strings.Cut(word, "=")
	if key == "user" && valued { // mount.cifs(8): the user name
		o.Data = append(o.Data, word)
		return nil
	}
	switch key {
	case "", "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group",
		"_netdev", "nofail", "relatime", "norelatime", "comment":
		return nil
	case "bind", "rbind", "remount", "move", "shared", "rshared", "slave", "rslave",
		"private", "rprivate", "unbindable", "runbindable", "loop":
		return fmt.Errorf("mount flag %q: not supported: it asks for another kind of mount; remove it", key)
	}
	if strings.HasPrefix(key, "x-") || strings.HasPrefix(key, "X-") {
		return nil
	}
	o.Data = append(o.Data, word)
	return nil
}

// JoinOptions joins the options of a file system into one string, as mount(2) and
// mount helpers take them. They split it at commas, but for security labels, whose
// values may stand in double quotes.
func JoinOptions(options []string) (string, error) {
	words := make([]string, len(options))
	for i, o := range options {
		if strings.Contains(o, ",") {
			key, value, ok := strings.Cut(o, "=")
			if !ok || strings.Contains(key, ",") || strings.Contains(value, `"`) {
				return "", fmt.Errorf("%w: a comma in %s", ErrOption, shown(o))
			}
			o = key + `="` + value + `"`
		}
		words[i] = o
	}
	return strings.Join(words, ","), nil
}

// shown is the part of an option that may appear in an error: its key. The value may be secret (csi.proto
// on mount_flags), and so may be what has no key, such as a password with a comma in it.
func shown(option string) string {
	key, _, ok := strings.Cut(option, "=")
	if !ok || strings.Contains(key, ",") {
		return "(hidden)"
	}
	return strconv.Quote(key)
}

func splitOptions(s string) ([]string, error) {
	var words []string
	var b strings.Builder
	quoted := false
	for _, r := range s {
		switch {
		case r == 0:
			return nil, fmt.Errorf("mount flag %s: has a NUL byte", shown(b.String()))
		case r == '"':
			quoted = !quoted
		case r == ',' && !quoted:
			words = append(words, b.String())
			b.Reset()
		default:
			b.WriteRune(r)
		}
	}
	if quoted {
		return nil, fmt.Errorf("mount flag %s: a double quote is not closed", shown(b.String()))
	}
	return append(words, b.String()), nil
}

// MountAttr returns the attributes that a line of the mount table shows. The
// kernel has no word for StrictAtime there: it is when neither of the others is.
func (m Mount) MountAttr() Attr {
	var a Attr
	for _, n := range attrNames {
		if hasOption(m.Options, n.on) {
			a |= n.attr
		}
	}
	if a&NoAtime == 0 && !hasOption(m.Options, "relatime") {
		a |= StrictAtime
	}
	return a
}
