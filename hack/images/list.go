package images

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// A list is the packages of Debian that an image for one architecture consists of. Those in
// debian/ pin them: NAME.ARCH.
type list struct {
	wanted   []string // that the Dockerfile installs
	snapshot string   // of snapshot.debian.org: the time of the renewal
	packages []debianPackage
}

type debianPackage struct {
	name, version, sha256 string
	path                  string // on a mirror: debian/pool/... or debian-security/pool/...
}

const snapshotTime = "20060102T150405Z"

// errStale is what "make images-renew" mends.
var errStale = errors.New(`run "make images-renew", and commit what it changes in hack/images/debian`)

func readList(name string) (l list, err error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return l, fmt.Errorf("%w: %w", err, errStale)
	}
	if err != nil {
		return l, err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || f[0] == "#":
		case f[0] == "install":
			l.wanted = f[1:]
		case f[0] == "snapshot" && len(f) == 2:
			l.snapshot = f[1]
		case len(f) == 4:
			l.packages = append(l.packages, debianPackage{f[0], f[1], f[2], f[3]})
		default:
			return l, fmt.Errorf("%s: %q: %w", name, strings.TrimSpace(line), errStale)
		}
	}
	if _, err := time.Parse(snapshotTime, l.snapshot); err != nil || len(l.packages) == 0 {
		return l, fmt.Errorf("%s: incomplete: %w", name, errStale)
	}
	return l, nil
}

func (l list) write(name string) error {
	var b strings.Builder
	b.WriteString("# Written by \"make images-renew\": name, version, SHA-256 and path on a mirror of Debian of each package.\n")
	fmt.Fprintf(&b, "install %s\nsnapshot %s\n", strings.Join(l.wanted, " "), l.snapshot)
	for _, p := range l.packages {
		fmt.Fprintln(&b, p.name, p.version, p.sha256, p.path)
	}
	return os.WriteFile(name, []byte(b.String()), 0o644)
}

// sources are the addresses of a package: the mirrors have the current versions, and the
// snapshot all.
func (l list) sources(p debianPackage) []string {
	archive, rest, _ := strings.Cut(p.path, "/")
	return []string{
		"http://deb.debian.org/" + p.path,
		"http://snapshot.debian.org/archive/" + archive + "/" + l.snapshot + "/" + rest,
	}
}
