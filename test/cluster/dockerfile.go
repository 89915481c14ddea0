//go:build linux

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// A stage is what a Dockerfile of the examples says about an image. The images of the
// cluster are made from that, without Docker and without a registry.
type stage struct {
	name       string
	scratch    bool     // else a Debian
	packages   []string // installed by apt-get
	removed    []string // paths that are deleted after that
	binary     string   // where the driver is copied to
	user       string
	entrypoint string
}

// readDockerfile returns the stages but the first, which compiles the driver. An
// instruction that it does not know is an error: an image would not be what the
// Dockerfile describes.
func readDockerfile(name string) (stages []stage, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	joined := strings.ReplaceAll(string(text), "\\\n", " ")
	first := true
	for line := range strings.Lines(joined) {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") || f[0] == "ARG" {
			continue
		}
		if f[0] == "FROM" {
			if first = f[len(f)-1] == "build"; first {
				continue
			}
			if len(f) != 4 || f[2] != "AS" {
				return nil, fmt.Errorf("%s: %s", name, line)
			}
			stages = append(stages, stage{name: f[3], scratch: f[1] == "scratch"})
			if !stages[len(stages)-1].scratch && f[1] != "${BASE}" {
				return nil, fmt.Errorf("%s: unknown base in %s", name, line)
			}
			continue
		}
		if first {
			continue
		}
		s := &stages[len(stages)-1]
		switch f[0] {
		case "RUN":
			for command := range strings.SplitSeq(strings.TrimPrefix(line, "RUN "), "&&") {
				c := strings.Fields(command)
				switch {
				case c[0] == "sed" && strings.Contains(command, "/etc/apt/sources.list.d/"), slices.Contains(c, "update"):
				case c[0] == "apt-get" && c[1] == "install":
					for _, arg := range c[2:] {
						if !strings.HasPrefix(arg, "-") {
							s.packages = append(s.packages, arg)
						}
					}
				case c[0] == "rm":
					for _, arg := range c[1:] {
						if strings.HasPrefix(arg, "/") && !strings.Contains(arg, "*") {
							s.removed = append(s.removed, arg)
						}
					}
				default:
					return nil, fmt.Errorf("%s: %s: unknown command %q", name, s.name, command)
				}
			}
		case "COPY":
			if len(f) != 4 || f[1] != "--from=build" {
				return nil, fmt.Errorf("%s: %s", name, line)
			}
			s.binary = f[3]
		case "USER":
			s.user = f[1]
		case "ENTRYPOINT":
			s.entrypoint = strings.Trim(f[1], `[]"`)
		default:
			return nil, fmt.Errorf("%s: unknown instruction: %s", name, line)
		}
	}
	for _, s := range stages {
		if s.binary == "" || s.entrypoint != s.binary {
			return nil, fmt.Errorf("%s: %s: the entry point %q is not the driver, %q", name, s.name, s.entrypoint, s.binary)
		}
	}
	return stages, nil
}
