//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// debianRoot returns a directory in the cache with packages of Debian unpacked in it: programs
// of the cluster. It installs nothing: no script of a package runs. (What the drivers' images
// have of Debian is hack/images' work.)
func debianRoot(ctx context.Context, cache string, packages ...string) (string, error) {
	key := sha256.Sum256(fmt.Append(nil, packages))
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
	script := exec.CommandContext(ctx, "sh", append([]string{"-euc", `
mkdir debs root root/usr && chmod 755 root
for d in bin sbin lib lib64; do mkdir root/usr/$d; ln -s usr/$d root/$d; done
(cd debs && apt-get download -qq -o APT::Sandbox::User=root "$@")
for deb in debs/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C root; done
rm -r debs
`, "sh"}, packages...)...)
	script.Dir = unfinished
	if out, err := script.CombinedOutput(); err != nil {
		return "", fmt.Errorf("unpacking %v: %w\n%s", packages, err, out)
	}
	return dir, os.Rename(filepath.Join(unfinished, "root"), dir)
}
