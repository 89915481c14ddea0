//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

// An archive is an OCI image layout that is written as one tar file, for "ctr images
// import".
type archive struct {
	file      *os.File
	tar       *tar.Writer
	written   map[string]bool
	manifests []descriptor
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

const (
	layerType    = "application/vnd.oci.image.layer.v1.tar"
	configType   = "application/vnd.oci.image.config.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
)

func createArchive(name string) (*archive, error) {
	file, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	a := &archive{file: file, tar: tar.NewWriter(file), written: map[string]bool{}}
	return a, a.entry("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
}

func (a *archive) entry(name string, data []byte) error {
	if err := a.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := a.tar.Write(data)
	return err
}

func (a *archive) json(mediaType string, v any) (descriptor, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	return a.blob(mediaType, bytes.NewReader(data), int64(len(data)))
}

func (a *archive) blob(mediaType string, r io.ReadSeeker, size int64) (descriptor, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		return descriptor{}, err
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	d := descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: size}
	if a.written[digest] {
		return d, nil
	}
	a.written[digest] = true
	if err := a.tar.WriteHeader(&tar.Header{Name: "blobs/sha256/" + digest, Mode: 0o644, Size: size}); err != nil {
		return d, err
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return d, err
	}
	_, err := io.Copy(a.tar, r)
	return d, err
}

// An image is what one consists of.
type image struct {
	name       string // as manifests say it
	layers     []string
	user       string
	entrypoint []string
	command    []string
}

// add writes an image.
func (a *archive) add(i image) error {
	var layers []descriptor
	var digests []string
	for _, name := range i.layers {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if err != nil {
			return err
		}
		d, err := a.blob(layerType, f, info.Size())
		f.Close()
		if err != nil {
			return err
		}
		layers = append(layers, d)
		digests = append(digests, d.Digest) // the layers are not compressed
	}
	on := platform{runtime.GOARCH, "linux"}
	config, err := a.json(configType, map[string]any{
		"architecture": on.Architecture, "os": on.OS,
		"config": map[string]any{
			"User": i.user, "Entrypoint": i.entrypoint, "Cmd": i.command,
			"Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": digests},
	})
	if err != nil {
		return err
	}
	m, err := a.json(manifestType, map[string]any{"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": layers})
	if err != nil {
		return err
	}
	m.Platform = &on
	m.Annotations = map[string]string{"io.containerd.image.name": reference(i.name)}
	a.manifests = append(a.manifests, m)
	return nil
}

func (a *archive) close() error {
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": a.manifests})
	if err != nil {
		return err
	}
	return errors.Join(a.entry("index.json", index), a.tar.Close(), a.file.Close())
}

// reference is the full name of an image: a name without a registry is Docker's.
func reference(name string) string {
	host, _, found := strings.Cut(name, "/")
	switch {
	case !found:
		return "docker.io/library/" + name
	case !strings.ContainsAny(host, ".:"):
		return "docker.io/" + name
	}
	return name
}

// layerOf writes a layer with files of the host, by their path in the image.
func layerOf(output string, files map[string]string, links map[string]string) error {
	f, err := os.Create(output)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	dirs := map[string]bool{".": true}
	parents := func(name string) error {
		var missing []string
		for dir := path.Dir(name); !dirs[dir]; dir = path.Dir(dir) {
			missing = append([]string{dir}, missing...)
			dirs[dir] = true
		}
		for _, dir := range missing {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
				return err
			}
		}
		return nil
	}
	for name, source := range files {
		name = strings.TrimPrefix(name, "/")
		data, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		if err := parents(name); err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data))}); err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	for name, target := range links {
		name = strings.TrimPrefix(name, "/")
		if err := parents(name); err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), f.Close())
}

// layerOfDir writes a layer with everything in a directory, except some paths.
func layerOfDir(ctx context.Context, output, dir string, except []string) error {
	args := []string{"-C", dir, "--sort=name", "--numeric-owner", "--anchored", "-cf", output}
	for _, e := range except {
		args = append(args, "--exclude=."+filepath.Clean(e))
	}
	out, err := exec.CommandContext(ctx, "tar", append(args, ".")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("tar %v: %w\n%s", args, err, out)
	}
	return nil
}
