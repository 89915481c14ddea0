package images

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// A selection takes files out of packages.
type selection struct {
	arch  string
	all   Tree              // every file of the packages
	owner map[string]string // its package
	tree  Tree              // those that were taken
	used  map[string]bool   // their packages
}

// openedAtRunTime has files that a library opens by name, and that it does not say in its header.
var openedAtRunTime = map[string]string{
	"libc.so.6":     "libgcc_s.so.1",  // pthread_exit, pthread_cancel
	"libtirpc.so.3": "/etc/netconfig", // of NFSv3
}

var triplets = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

// baseFiles says which Debian it is, as scanners for vulnerabilities ask.
const baseFiles = "base-files"

// selectFiles returns, of the packages of a list, the programs and configuration of
// those that are wanted without the removed paths, the libraries that they need, the licences, and
// what scanners read. It also returns the list without the packages of which nothing is used.
func (b *Builder) selectFiles(ctx context.Context, l list, arch string, removed []string) (Tree, list, error) {
	s := &selection{arch: arch, all: Tree{}, owner: map[string]string{}, tree: Tree{}, used: map[string]bool{}}
	for _, p := range l.packages {
		if err := s.read(ctx, p.name, b.deb(p)); err != nil {
			return nil, l, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	for _, name := range removed {
		delete(s.all, usr(name))
	}
	for name, f := range s.all {
		if !slices.Contains(l.wanted, s.owner[name]) || f.Dir {
			continue
		}
		program := strings.HasPrefix(name, "usr/bin/") || strings.HasPrefix(name, "usr/sbin/")
		target, content, err := s.resolve(name)
		switch {
		case err != nil: // a link to what another package would have
		case program && isELF(content.Data), strings.HasPrefix(name, "etc/") && !isScript(content.Data):
			if err := s.take(name, target); err != nil {
				return nil, l, err
			}
		}
	}
	if err := s.takeName("usr/lib/os-release"); err != nil {
		return nil, l, err
	}
	for {
		before := len(s.used)
		for p := range s.used {
			if err := s.licence(p); err != nil {
				return nil, l, err
			}
		}
		if len(s.used) == before {
			break
		}
	}
	kept := l
	kept.packages = nil
	for _, p := range l.packages {
		if !s.used[p.name] {
			continue
		}
		kept.packages = append(kept.packages, p)
		control, err := exec.CommandContext(ctx, "dpkg-deb", "--field", b.deb(p)).Output()
		if err != nil {
			return nil, l, fmt.Errorf("dpkg-deb --field: %s: %w", p.name, err)
		}
		s.tree["var/lib/dpkg/status.d/"+p.name] = File{Mode: 0o644, Data: control}
	}
	slices.SortFunc(kept.packages, func(a, b debianPackage) int { return strings.Compare(a.name, b.name) })
	for name, f := range map[string]File{
		"etc/passwd":        {Mode: 0o644, Data: []byte("root:x:0:0:root:/root:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n")},
		"etc/group":         {Mode: 0o644, Data: []byte("root:x:0:\nnogroup:x:65534:\n")},
		"etc/nsswitch.conf": {Mode: 0o644, Data: []byte("hosts: files dns\n")},
		"etc/mtab":          {Link: "/proc/self/mounts"},
		"tmp":               {Mode: 0o1777, Dir: true},
		"root":              {Mode: 0o700, Dir: true},
		"run":               {Mode: 0o755, Dir: true},
	} {
		s.tree[name] = f
	}
	for _, dir := range merged {
		s.tree[dir] = File{Link: "usr/" + dir}
		if _, found := s.tree["usr/"+dir]; !found {
			s.tree["usr/"+dir] = File{Mode: 0o755, Dir: true}
		}
	}
	return s.tree, kept, nil
}

// merged are the directories that are links into /usr.
var merged = []string{"bin", "sbin", "lib", "lib64"}

// usr is the path of a file of a package where /bin and others are links into /usr.
func usr(name string) string {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	if first, _, _ := strings.Cut(name, "/"); slices.Contains(merged, first) {
		return "usr/" + name
	}
	return name
}

func (s *selection) read(ctx context.Context, owner, deb string) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	var failed bytes.Buffer
	cmd.Stderr = &failed
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r := tar.NewReader(pipe)
	for err == nil {
		var h *tar.Header
		if h, err = r.Next(); err == nil {
			err = s.entry(owner, h, r)
		}
	}
	if errors.Is(err, io.EOF) {
		_, err = io.Copy(io.Discard, pipe)
	}
	if waited := cmd.Wait(); err == nil && waited != nil {
		err = fmt.Errorf("dpkg-deb: %w: %s", waited, failed.Bytes())
	}
	return err
}

func (s *selection) entry(owner string, h *tar.Header, r io.Reader) error {
	name := usr(h.Name)
	f := File{Mode: h.Mode & 0o777, UID: h.Uid, GID: h.Gid} // no program is set-user-ID
	switch h.Typeflag {
	case tar.TypeDir:
		f.Dir = true
		if _, found := s.all[name]; found {
			return nil
		}
	case tar.TypeSymlink:
		f.Link = h.Linkname
	case tar.TypeLink:
		f.Data = s.all[usr(h.Linkname)].Data
	case tar.TypeReg:
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		f.Data = data
	default:
		return fmt.Errorf("%s has type %q", h.Name, h.Typeflag)
	}
	s.all[name], s.owner[name] = f, owner
	return nil
}

// resolve follows symbolic links, in the last component and before.
func (s *selection) resolve(name string) (string, File, error) {
	rest := strings.Split(usr(name), "/")
	at := ""
	for links := 0; len(rest) > 0; {
		at, rest = path.Join(at, rest[0]), rest[1:]
		f, found := s.all[at]
		if !found && len(rest) == 0 {
			return at, f, fmt.Errorf("%s: no package has %s", name, at)
		}
		if f.Link == "" {
			continue
		}
		if links++; links > 40 {
			return at, f, fmt.Errorf("%s: too many links", name)
		}
		target := f.Link
		if !path.IsAbs(target) {
			target = path.Join("/", path.Dir(at), target)
		}
		at, rest = "", append(strings.Split(usr(target), "/"), rest...)
	}
	return at, s.all[at], nil
}

// take takes a file, or a link and its target, and what the target needs.
func (s *selection) take(name, target string) error {
	for _, n := range []string{name, target} {
		s.tree[n] = s.all[n]
		s.used[s.owner[n]] = true
	}
	if f := s.tree[name]; name != target { // where links go through directories, to the file itself
		f.Link = "/" + target
		s.tree[name] = f
	}
	if !isELF(s.all[target].Data) {
		return nil
	}
	return s.takeLibraries(target)
}

func (s *selection) takeName(name string) error {
	target, _, err := s.resolve(name)
	if err == nil && s.tree[usr(name)].Data == nil {
		err = s.take(usr(name), target)
	}
	return err
}

func (s *selection) takeLibraries(name string) error {
	f, err := elf.NewFile(bytes.NewReader(s.all[name].Data))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if opened := openedAtRunTime[path.Base(name)]; opened != "" {
		needed = append(needed, opened)
	}
	if soname, err := f.DynString(elf.DT_SONAME); err == nil && len(soname) == 1 && soname[0] != path.Base(name) {
		needed = append(needed, openedAtRunTime[soname[0]])
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			interpreter, err := io.ReadAll(p.Open())
			if err != nil {
				return err
			}
			needed = append(needed, strings.TrimRight(string(interpreter), "\x00"))
		}
	}
	runpath, err := f.DynString(elf.DT_RUNPATH)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	dirs := append(strings.Split(strings.Join(runpath, ":"), ":"), "/usr/lib/"+triplets[s.arch], "/usr/lib")
	for _, n := range needed {
		if n == "" {
			continue
		}
		found := false
		for _, dir := range dirs {
			candidate := n
			if !path.IsAbs(n) {
				candidate = path.Join(dir, n)
			}
			if _, _, err := s.resolve(candidate); err == nil {
				found = true
				if _, taken := s.tree[usr(candidate)]; !taken {
					if err := s.takeName(candidate); err != nil {
						return err
					}
				}
				break
			}
		}
		if !found {
			return fmt.Errorf("%s needs %s, which no package has", name, n)
		}
	}
	return nil
}

func (s *selection) licence(p string) error {
	name := "usr/share/doc/" + p + "/copyright"
	target, content, err := s.resolve(name)
	if err != nil {
		return err
	}
	s.used[s.owner[target]] = true
	s.tree[name] = File{Mode: 0o644, Data: content.Data}
	return nil
}

func isELF(data []byte) bool    { return bytes.HasPrefix(data, []byte(elf.ELFMAG)) }
func isScript(data []byte) bool { return bytes.HasPrefix(data, []byte("#!")) }
