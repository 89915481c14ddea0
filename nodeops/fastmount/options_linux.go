package fastmount

import (
	"strings"

	"golang.org/x/sys/unix"
)

// options are the words of a Mount call, split by what they apply to.
type options struct {
	bind, recursive, remount bool
	propagation              []uintptr // flags of mount(2), in the order given
	rest                     []string  // for the mount and the file system, quotes kept
	foreign                  bool      // there is a word that only mount(8) implements
}

func parseOptions(lists ...[]string) options {
	var o options
	for _, list := range lists {
		for _, element := range list {
			for _, word := range splitWords(element) {
				o.add(word)
			}
		}
	}
	return o
}

func (o *options) add(word string) {
	key, _, hasValue := strings.Cut(word, "=")
	_, isAttr := attrWords[key]
	switch {
	case word == "bind":
		o.bind = true
	case word == "rbind":
		o.bind, o.recursive = true, true
	case word == "remount":
		o.remount = true
	case propagationWords[word] != 0:
		o.propagation = append(o.propagation, propagationWords[word])
	case isAttr && hasValue, // ro=recursive, of util-linux 2.39
		foreignWords[key],
		strings.HasPrefix(key, "verity."),
		strings.HasPrefix(key, "X-mount."):
		o.foreign = true
	default:
		o.rest = append(o.rest, word)
	}
}

// splitWords splits at commas outside double quotes, and keeps the quotes.
func splitWords(s string) []string {
	quoted := false
	return strings.FieldsFunc(s, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ',' && !quoted
	})
}

// foreignWords have an effect in mount(8) that is not implemented here. Words that mount(8)
// ignores (auto, _netdev, comment=, x-*) are not among them.
var foreignWords = map[string]bool{
	"loop": true, "offset": true, "sizelimit": true, "encryption": true,
	"user": true, "users": true, "owner": true, "group": true,
	"nousers": true, "noowner": true, "nogroup": true,
	"helper": true, "uhelper": true, "move": true,
	"silent": true, "loud": true, "iversion": true, "noiversion": true,
	"nostrictatime": true, "symfollow": true,
}

var propagationWords = map[string]uintptr{
	"shared": unix.MS_SHARED, "rshared": unix.MS_SHARED | unix.MS_REC,
	"slave": unix.MS_SLAVE, "rslave": unix.MS_SLAVE | unix.MS_REC,
	"private": unix.MS_PRIVATE, "rprivate": unix.MS_PRIVATE | unix.MS_REC,
	"unbindable": unix.MS_UNBINDABLE, "runbindable": unix.MS_UNBINDABLE | unix.MS_REC,
}

// attrWords are the words for attributes of one mount, in the flags of mount_setattr(2).
// The three forms of atime are one field, cleared as a whole.
var attrWords = map[string]struct{ set, clear uint64 }{
	"ro":          {set: unix.MOUNT_ATTR_RDONLY},
	"rw":          {clear: unix.MOUNT_ATTR_RDONLY},
	"nosuid":      {set: unix.MOUNT_ATTR_NOSUID},
	"suid":        {clear: unix.MOUNT_ATTR_NOSUID},
	"nodev":       {set: unix.MOUNT_ATTR_NODEV},
	"dev":         {clear: unix.MOUNT_ATTR_NODEV},
	"noexec":      {set: unix.MOUNT_ATTR_NOEXEC},
	"exec":        {clear: unix.MOUNT_ATTR_NOEXEC},
	"nodiratime":  {set: unix.MOUNT_ATTR_NODIRATIME},
	"diratime":    {clear: unix.MOUNT_ATTR_NODIRATIME},
	"nosymfollow": {set: unix.MOUNT_ATTR_NOSYMFOLLOW},
	"noatime":     {set: unix.MOUNT_ATTR_NOATIME, clear: unix.MOUNT_ATTR__ATIME},
	"strictatime": {set: unix.MOUNT_ATTR_STRICTATIME, clear: unix.MOUNT_ATTR__ATIME},
	"relatime":    {set: unix.MOUNT_ATTR_RELATIME, clear: unix.MOUNT_ATTR__ATIME},
	"atime":       {set: unix.MOUNT_ATTR_RELATIME, clear: unix.MOUNT_ATTR__ATIME},
}

// attr is the change of attributes for an existing mount; the last word counts.
func (o options) attr() unix.MountAttr {
	var a unix.MountAttr
	for _, word := range o.rest {
		w := attrWords[word]
		a.Attr_set = a.Attr_set&^w.clear | w.set
		a.Attr_clr |= w.clear
	}
	return a
}

// bindAttr is the change of the attributes that a bind mount inherits. As in
// mount-utils, "rw" does not lift a restriction of the source.
func (o options) bindAttr() unix.MountAttr {
	a := o.attr()
	a.Attr_clr = 0
	if a.Attr_set&unix.MOUNT_ATTR__ATIME != 0 {
		a.Attr_clr = unix.MOUNT_ATTR__ATIME
	}
	return a
}
