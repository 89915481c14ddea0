package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// errNotServed is of a version in a list that neither the mirrors nor the snapshot have.
var errNotServed = errors.New("not served")

// debDir has the packages that were downloaded, each named by its SHA-256.
func (b *Builder) debDir() string { return filepath.Join(b.Cache, "debs") }

func (b *Builder) deb(p debianPackage) string { return filepath.Join(b.debDir(), p.sha256+".deb") }

// download downloads what is missing. apt-helper takes the proxies from apt's configuration.
func (b *Builder) download(ctx context.Context, l list) error {
	if err := os.MkdirAll(b.debDir(), 0o755); err != nil {
		return err
	}
	for source := range 2 {
		var missing, args []string
		for _, p := range l.packages {
			if sum, err := sumOf(b.deb(p)); err != nil || sum != p.sha256 {
				missing = append(missing, p.name+" "+p.version)
				args = append(args, l.sources(p)[source], b.deb(p), "SHA256:"+p.sha256)
			}
		}
		if missing == nil {
			return nil
		}
		b.Log("downloading %d packages of Debian", len(missing))
		out, err := b.apt(ctx, "/usr/lib/apt/apt-helper", append([]string{"-o", "Acquire::Retries=2", "download-file"}, args...)...)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || source == 1 {
			return fmt.Errorf("%w: one of %s: %w\n%s: %w", errNotServed, strings.Join(missing, ", "), err, out, errStale)
		}
	}
	return nil
}

// resolve returns what Debian serves now for some packages and everything that they depend
// on, downloaded. apt does it, in a directory of its own, as for a system of that
// architecture on which nothing is installed, and verifies the signatures.
func (b *Builder) resolve(ctx context.Context, suite, arch string, packages []string) (l list, err error) {
	if _, err := os.Stat(keyring); err != nil {
		return l, fmt.Errorf("%w: install debian-archive-keyring", err)
	}
	dir, err := os.MkdirTemp(b.Cache, "apt")
	if err != nil {
		return l, err
	}
	defer os.RemoveAll(dir)
	archives := filepath.Join(dir, "cache/archives")
	for _, d := range []string{filepath.Join(dir, "lists/partial"), filepath.Join(archives, "partial"), b.debDir()} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return l, err
		}
	}
	var sources strings.Builder
	for _, s := range []string{"debian " + suite, "debian " + suite + "-updates", "debian-security " + suite + "-security"} {
		fmt.Fprintf(&sources, "deb [signed-by=%s] http://deb.debian.org/%s main\n", keyring, s)
	}
	if err := os.WriteFile(filepath.Join(dir, "sources.list"), []byte(sources.String()), 0o644); err != nil {
		return l, err
	}
	options := []string{"-qq", "-y"}
	for _, o := range []string{
		"Dir::Etc::SourceList=" + filepath.Join(dir, "sources.list"), "Dir::Etc::SourceParts=/dev/null",
		"Dir::Etc::Preferences=/dev/null", "Dir::Etc::PreferencesParts=/dev/null",
		"Dir::State=" + dir, "Dir::State::Status=/dev/null", "Dir::Cache=" + filepath.Join(dir, "cache"),
		"APT::Architecture=" + arch, "APT::Architectures=" + arch, "APT::Default-Release=", "APT::Install-Recommends=0",
		"APT::Update::Post-Invoke=", "APT::Update::Post-Invoke-Success=", "DPkg::Post-Invoke=",
	} {
		options = append(options, "-o", o)
	}
	install := append(slices.Concat(options, []string{"install", "--download-only"}), packages...)
	addresses, err := []byte(nil), error(nil)
	for _, args := range [][]string{append(slices.Clone(options), "update"), append(slices.Clone(install), "--print-uris"), install} {
		out, err := b.apt(ctx, "apt-get", args...)
		if err != nil {
			return l, fmt.Errorf("apt-get %v: %w\n%s", args, err, out)
		}
		if slices.Contains(args, "--print-uris") {
			addresses = out
		}
	}
	l = list{wanted: packages, snapshot: time.Now().UTC().Format(snapshotTime)}
	for _, m := range uriLine.FindAllStringSubmatch(string(addresses), -1) {
		path, err := url.PathUnescape(m[1])
		if err != nil {
			return l, err
		}
		file := filepath.Join(archives, m[2])
		fields, err := exec.CommandContext(ctx, "dpkg-deb", "--show", "--showformat=${Package} ${Version}", file).Output()
		if err != nil {
			return l, fmt.Errorf("dpkg-deb --show %s: %w", m[2], err)
		}
		name, version, _ := strings.Cut(string(fields), " ")
		sum, err := sumOf(file)
		if err != nil {
			return l, err
		}
		p := debianPackage{name, version, sum, path}
		if err := os.Rename(file, b.deb(p)); err != nil {
			return l, err
		}
		l.packages = append(l.packages, p)
	}
	if len(l.packages) == 0 {
		return l, fmt.Errorf("apt-get found no packages for %v:\n%s", packages, addresses)
	}
	return l, nil
}

var uriLine = regexp.MustCompile(`(?m)^'https?://[^/]+/([^']+)' (\S+)`)

func (b *Builder) apt(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, append([]string{"-o", "APT::Sandbox::User="}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	return cmd.CombinedOutput()
}

func sumOf(name string) (string, error) {
	data, err := os.ReadFile(name)
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), err
}
