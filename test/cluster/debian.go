//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

var instLine = regexp.MustCompile(`(?m)^Inst (\S+)`)

// debianRoot returns a directory in the cache with packages of Debian unpacked in it, and
// everything that they depend on. withBase adds what an image of Debian has. It
// installs nothing: no script of a package runs.
func debianRoot(ctx context.Context, cache string, withBase bool, packages ...string) (string, error) {
	key := sha256.Sum256(fmt.Append(nil, withBase, packages))
	dir := filepath.Join(cache, fmt.Sprintf("debian-%.8x", key))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	say("downloading Debian packages: %s", strings.Join(packages, " "))
	unfinished, err := os.MkdirTemp(cache, "unfinished")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(unfinished)
	if out, err := exec.CommandContext(ctx, "apt-get", "update", "-qq").CombinedOutput(); err != nil {
		return "", fmt.Errorf("apt-get update: %w\n%s", err, out)
	}
	names := packages
	if withBase {
		// apt resolves the dependencies, as for a system on which nothing is installed.
		args := append([]string{"-o", "Dir::State::status=/dev/null", "-s", "install", "--no-install-recommends", "?essential"}, packages...)
		out, err := exec.CommandContext(ctx, "apt-get", args...).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("apt-get %v: %w\n%s", args, err, out)
		}
		names = nil
		for _, m := range instLine.FindAllSubmatch(out, -1) {
			names = append(names, string(m[1]))
		}
	}
	script := exec.CommandContext(ctx, "sh", append([]string{"-euc", `
mkdir debs root root/usr && chmod 755 root
for d in bin sbin lib lib64; do mkdir root/usr/$d; ln -s usr/$d root/$d; done
(cd debs && apt-get download -qq -o APT::Sandbox::User=root "$@")
for deb in debs/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C root; done
rm -rf root/usr/share/doc root/usr/share/man root/usr/share/locale root/usr/share/info
# base-passwd's script copies these.
for f in passwd group; do
	[ ! -e root/usr/share/base-passwd/$f.master ] || cp root/usr/share/base-passwd/$f.master root/etc/$f
done
rm -r debs
`, "sh"}, names...)...)
	script.Dir = unfinished
	if out, err := script.CombinedOutput(); err != nil {
		return "", fmt.Errorf("unpacking %v: %w\n%s", names, err, out)
	}
	return dir, os.Rename(filepath.Join(unfinished, "root"), dir)
}
