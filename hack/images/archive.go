package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"time"
)

// An Image is one image for one architecture.
type Image struct {
	Name         string // without a tag
	Architecture string // as GOARCH has it
	Layers       [][]byte
	User         string
	Entrypoint   []string
	Command      []string // the default arguments of Entrypoint
	SBOM         []byte   // CycloneDX, JSON
}

// A Descriptor is a blob of an archive, as OCI describes it.
type Descriptor struct {
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
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
	configType   = "application/vnd.oci.image.config.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
)

// An Archive is an OCI image layout in one tar file: what "docker load", "podman load",
// "ctr images import" and "skopeo copy oci-archive:" read.
type Archive struct {
	file    *os.File
	tar     *tar.Writer
	at      time.Time
	written map[string]bool
	index   []Descriptor
}

// Create creates the archive. The time is that of everything in it.
func Create(name string, at time.Time) (*Archive, error) {
	file, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	a := &Archive{file: file, tar: tar.NewWriter(file), at: at, written: map[string]bool{}}
	if err := a.entry("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return a, nil
}

// Close completes the archive.
func (a *Archive) Close() error {
	err := a.entry("index.json", encode(index(a.index)))
	return errors.Join(err, a.tar.Close(), a.file.Close())
}

// Add writes an image under a name with a tag. One of several architectures is an index.
// It returns a descriptor for each image, and that of the whole at the end.
func (a *Archive) Add(name string, images ...Image) ([]Descriptor, error) {
	var manifests []Descriptor
	for _, i := range images {
		m, err := a.manifest(i)
		if err != nil {
			return nil, err
		}
		manifests = append(manifests, m)
	}
	whole := manifests[0]
	if len(images) > 1 {
		data := encode(index(manifests))
		whole = describe(indexType, data)
		if err := a.blob(whole, data); err != nil {
			return nil, err
		}
	}
	full := Reference(name)
	whole.Annotations = map[string]string{
		"io.containerd.image.name":          full,
		"org.opencontainers.image.ref.name": full[strings.LastIndexByte(full, ':')+1:],
	}
	a.index = append(a.index, whole)
	return append(manifests, whole), nil
}

func (a *Archive) manifest(i Image) (Descriptor, error) {
	var layers []Descriptor
	var plain []string
	for _, layer := range i.Layers {
		var compressed bytes.Buffer
		w, err := gzip.NewWriterLevel(&compressed, gzip.BestSpeed)
		if err != nil {
			return Descriptor{}, err
		}
		_, err = w.Write(layer)
		if err = errors.Join(err, w.Close()); err != nil {
			return Descriptor{}, err
		}
		d := describe(layerType, compressed.Bytes())
		if err := a.blob(d, compressed.Bytes()); err != nil {
			return d, err
		}
		layers = append(layers, d)
		plain = append(plain, describe("", layer).Digest)
	}
	on := platform{i.Architecture, "linux"}
	config := encode(map[string]any{
		"created": a.at.UTC().Format(time.RFC3339), "architecture": on.Architecture, "os": on.OS,
		"config": map[string]any{
			"User": i.User, "Entrypoint": i.Entrypoint, "Cmd": i.Command,
			"Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": plain},
	})
	c := describe(configType, config)
	m := encode(map[string]any{"schemaVersion": 2, "mediaType": manifestType, "config": c, "layers": layers})
	d := describe(manifestType, m)
	d.Platform = &on
	return d, errors.Join(a.blob(c, config), a.blob(d, m))
}

func (a *Archive) blob(d Descriptor, data []byte) error {
	if a.written[d.Digest] {
		return nil
	}
	a.written[d.Digest] = true
	return a.entry("blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:"), data)
}

func (a *Archive) entry(name string, data []byte) error {
	if err := a.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: a.at}); err != nil {
		return err
	}
	_, err := a.tar.Write(data)
	return err
}

func index(manifests []Descriptor) any {
	return map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": manifests}
}

func describe(mediaType string, data []byte) Descriptor {
	sum := sha256.Sum256(data)
	return Descriptor{MediaType: mediaType, Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: int64(len(data))}
}

// encode is for maps and structs of strings and numbers, which always have a JSON form.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// Reference is the full name of an image: a name without a registry is Docker's.
func Reference(name string) string {
	host, _, found := strings.Cut(name, "/")
	switch {
	case !found:
		return "docker.io/library/" + name
	case !strings.ContainsAny(host, ".:"):
		return "docker.io/" + name
	}
	return name
}
