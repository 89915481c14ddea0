package images

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The images of the drivers are made from the examples' Dockerfiles.
func TestDockerfiles(t *testing.T) {
	for driver, want := range map[string][]stage{
		"blockdriver": {
			{name: "controller", scratch: true, binary: "/blockdriver", user: "65532:65532", entrypoint: "/blockdriver"},
			{name: "node", packages: []string{"cryptsetup-bin", "dmsetup", "e2fsprogs", "util-linux", "xfsprogs"}, removed: []string{"/var/cache/ldconfig/aux-cache"}, binary: "/usr/local/bin/blockdriver", entrypoint: "/usr/local/bin/blockdriver"},
		},
		"nfsdriver": {
			{name: "nfsdriver", packages: []string{"nfs-common"}, removed: []string{"/usr/sbin/start-statd", "/var/cache/ldconfig/aux-cache"}, binary: "/usr/local/bin/nfsdriver", entrypoint: "/usr/local/bin/nfsdriver"},
		},
	} {
		got, err := readDockerfile(filepath.Join("../../examples", driver, "Dockerfile"))
		if err != nil {
			t.Error(err)
			continue
		}
		equal := slices.EqualFunc(got.stages, want, func(a, b stage) bool {
			return a.name == b.name && a.scratch == b.scratch && a.binary == b.binary && a.user == b.user && a.entrypoint == b.entrypoint &&
				slices.Equal(a.packages, b.packages) && slices.Equal(a.removed, b.removed)
		})
		if !equal || got.module != "examples/"+driver || !strings.Contains(got.ldflags, "/"+driver+"/driver.Version=$VERSION") {
			t.Errorf("%s: got %+v, want %+v", driver, got, want)
		}
	}
}

// What a Dockerfile says and the images would not have is an error.
func TestUnknownInstructions(t *testing.T) {
	const start = "ARG GO=golang:1.2-x\nARG BASE=debian:y-slim\nFROM x AS build\nARG MODULE=m\nRUN go build -ldflags \"-s\" .\nFROM ${BASE} AS node\nCOPY --from=build /d /d\n"
	const end = "ENTRYPOINT [\"/d\"]\n"
	name := filepath.Join(t.TempDir(), "Dockerfile")
	for line, ok := range map[string]bool{
		"":                                      true,
		"USER 1:1\n":                            true,
		"RUN apt-get install -y a && rm -rf /x": true,
		"RUN adduser x\n":                       false,
		"ENV A=b\n":                             false,
		"COPY a b\n":                            false,
		"FROM alpine AS other\n":                false,
		"FROM scratch AS other\nUSER 1:1\n":     false, // without the driver
	} {
		if err := os.WriteFile(name, []byte(start+line+"\n"+end), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readDockerfile(name); (err == nil) != ok {
			t.Errorf("%q: %v", line, err)
		}
	}
}
