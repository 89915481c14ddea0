package nodeops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/csikit/csikit/csierr"
	"github.com/csikit/csikit/internal/mountapi"
	"golang.org/x/sys/unix"
)

func (n *Node) publishShare(ctx context.Context, s share, path resolvedPath) error {
	target, err := path.target()
	if err != nil {
		return err
	}
	on, undo, err := n.makeDirectory(ctx, target)
	if err != nil {
		return err
	}
	if len(on) > 0 {
		if diff := s.compare(on); len(diff) > 0 {
			return conflict("another volume or another configuration is published at the target path", diff)
		}
		return nil
	}
	if s.exclusive {
		// Of two concurrent calls, one has to find the other.
		defer n.lock("share " + s.source)()
		table, err := readTable()
		if err != nil {
			undo()
			return err
		}
		if others := table.sharesOf(s, target.Path()); len(others) > 0 {
			undo()
			return faultf(csierr.Precondition, "the access mode allows one target path on this node, and the volume is already published at %s: unpublish it there first", paths(others))
		}
	}
	_, unlock, err := lockTarget(ctx, target)
	if err != nil {
		undo()
		return err
	}
	defer unlock()
	failed := n.mountShare(ctx, s, target.Path())
	// The helper's result is not trusted: one that was killed may have mounted just before,
	// and one that succeeded may have mounted another source, or a FUSE file system whose
	// server has ended since.
	on, err = n.healthyAt(ctx, target)
	if err != nil {
		return &fault{kind: csierr.Uncertain, err: errors.Join(failed, err)}
	}
	if len(on) > 0 {
		diff := s.compare(on)
		if len(diff) == 0 {
			return nil
		}
		if failed == nil {
			failed = &fault{kind: csierr.Internal, diff: diff, err: errors.New("the mount helper succeeded, but mounted another source or configuration")}
		}
		if err := n.unmountAll(ctx, target); err != nil {
			return &fault{kind: csierr.Uncertain, err: errors.Join(failed, err)}
		}
	} else if failed == nil {
		failed = errors.New("the mount helper succeeded, but nothing is mounted, or its FUSE server has ended; see the helper's log")
	}
	undo()
	return failed
}

// mountShare runs the mount helper, see "EXTERNAL HELPERS" in mount(8).
func (n *Node) mountShare(ctx context.Context, s share, target string) error {
	var options []string
	if s.opts.Attr != 0 {
		options = append(options, s.opts.Attr.String())
	}
	data, err := mountapi.JoinOptions(s.opts.Data)
	if err != nil {
		return &fault{kind: csierr.Invalid, err: err}
	}
	if data != "" {
		options = append(options, data)
	}
	args := []string{s.source, target}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	name, err := n.exec.LookPath("mount." + s.fsType)
	if kind, _, sub := strings.Cut(s.fsType, "."); err != nil && sub {
		name, err = n.exec.LookPath("mount." + kind)
		args = append(args, "-t", s.fsType)
	}
	if err != nil {
		return fmt.Errorf("the mount helper mount.%s is not installed, or not on PATH (packages nfs-common, cifs-utils, ...): %w", s.fsType, err)
	}
	status, output, err := n.execute(ctx, program{name: name, args: args, timeout: n.helperTimeout, sensitive: s.sensitive})
	if err != nil {
		return err
	}
	if status == 0 {
		return nil
	}
	err = fmt.Errorf("%s exited with status %d: %s", name, status, output)
	if isNoSuchShare(output) {
		return &fault{kind: csierr.NotFound, err: err}
	}
	return err
}

// isNoSuchShare reports whether the server has no such directory. The exit status of a
// helper is the same for all errors of a server, so only the text of strerror(3) shows it;
// in another locale it is a mount that failed like any other.
func isNoSuchShare(output string) bool {
	return strings.Contains(strings.ToLower(output), unix.ENOENT.Error())
}

// sharesOf returns the mounts of the share, except the one at the target and its propagated
// copies. FUSE servers set any source, so their mounts are not found.
func (t table) sharesOf(s share, target string) []mountapi.Mount {
	known := t.locations([]string{target})
	var others []mountapi.Mount
	for _, m := range t {
		if sameSource(m.Source, s.source) && family(m.FSType) == family(s.fsType) && !slices.Contains(known, t.location(m)) {
			others = append(others, m)
		}
	}
	return others
}

// sameTypes maps further names of a file system type to one of them: helpers and the
// kernel use different ones.
var sameTypes = map[string]string{"nfs4": "nfs", "smb3": "cifs"}

func family(fsType string) string {
	if kind, known := sameTypes[fsType]; known {
		return kind
	}
	return strings.TrimPrefix(fsType, "fuse.")
}

func sameSource(a, b string) bool { return strings.TrimRight(a, "/") == strings.TrimRight(b, "/") }

// compare lists the differences between what is mounted and the share.
func (s share) compare(on []mountapi.Mount) []Difference {
	m := on[len(on)-1]
	diff := compareAttr(s.opts.Attr, on) // helpers of FUSE add restrictions
	if family(m.FSType) != family(s.fsType) {
		diff = append(diff, Difference{"file system type", s.fsType, m.FSType})
	}
	fuse := m.FSType == "fuse" || strings.HasPrefix(m.FSType, "fuse.")
	if !fuse && !sameSource(m.Source, s.source) {
		diff = append(diff, Difference{"source", s.source, m.Source})
	}
	for _, o := range s.opts.Data {
		key, want, _ := strings.Cut(o, "=")
		if key == "nfsvers" {
			key = "vers"
		}
		switch key {
		case "vers", "sec", "proto":
		case "gid":
			if _, err := strconv.Atoi(want); err != nil { // a name, which the helper looks up
				continue
			}
		default: // negotiated with the server, or shown in another form
			continue
		}
		have, shown := m.SuperOption(key)
		if shown && !slices.ContainsFunc(strings.Split(want, ":"), func(want string) bool { // "krb5p:krb5i" leaves the choice to the server
			// "4" is the newest of 4.x that the server has, "default" (of cifs) the newest of all.
			return have == want || key == "vers" && (want == "default" || strings.HasPrefix(have, want+"."))
		}) {
			diff = append(diff, Difference{"mount flag " + key, want, have})
		}
	}
	return diff
}
