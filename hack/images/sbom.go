package images

import (
	"bytes"
	"debug/buildinfo"
	"net/url"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sbom lists what an image consists of: the modules of the driver and of Go, and the packages
// of Debian.
func (b *Builder) sbom(name, arch, suite string, binary []byte, packages []debianPackage) ([]byte, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, err
	}
	components := []cdx.Component{library("stdlib", info.GoVersion[2:], "pkg:golang/stdlib@"+info.GoVersion[2:])}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m.Version = b.Version // a directory of this repository
		}
		components = append(components, library(m.Path, m.Version, "pkg:golang/"+m.Path+"@"+url.PathEscape(m.Version)))
	}
	for _, p := range packages {
		c := library(p.name, p.version, "pkg:deb/debian/"+url.PathEscape(p.name)+"@"+url.QueryEscape(p.version)+"?arch="+arch+"&distro="+suite)
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: p.sha256}}
		components = append(components, c)
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: b.At.UTC().Format(time.RFC3339),
		Component: &cdx.Component{
			Type: cdx.ComponentTypeContainer, BOMRef: name, Name: name, Version: b.Version,
			Properties: &[]cdx.Property{{Name: "arch", Value: arch}, {Name: "go.module", Value: info.Main.Path}},
		},
	}
	bom.Components = &components
	var out bytes.Buffer
	err = cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).Encode(bom)
	return out.Bytes(), err
}

func library(name, version, purl string) cdx.Component {
	return cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: purl, Name: name, Version: version, PackageURL: purl}
}
