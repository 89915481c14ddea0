package images

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// A dockerfile is what one of the examples' says.
type dockerfile struct {
	module  string // the directory with the driver's go.mod
	golang  string // the version of Go
	suite   string // of Debian
	ldflags string
	stages  []stage // without the one that compiles the driver
}

// A stage is what it says about one image.
type stage struct {
	name       string
	scratch    bool     // else a Debian
	packages   []string // installed by apt-get
	removed    []string // paths that are deleted after that
	binary     string   // where the driver is copied to
	user       string
	entrypoint string
}

var (
	argLine     = regexp.MustCompile(`(?m)^ARG (GO|BASE|MODULE)=(?:golang:|debian:)?([^-\s]+)`)
	ldflagsText = regexp.MustCompile(`-ldflags "([^"]*)"`)
)

// readDockerfile reads what the images are made from. An instruction that it does not know
// is an error: an image would not be what the Dockerfile describes.
func readDockerfile(name string) (d dockerfile, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return d, err
	}
	args := map[string]string{}
	for _, m := range argLine.FindAllStringSubmatch(string(text), -1) {
		args[m[1]] = m[2]
	}
	d.golang, d.suite, d.module = args["GO"], args["BASE"], args["MODULE"]
	if m := ldflagsText.FindStringSubmatch(string(text)); m != nil {
		d.ldflags = m[1]
	}
	if d.golang == "" || d.suite == "" || d.module == "" || d.ldflags == "" {
		return d, fmt.Errorf("%s: want ARG GO=golang:..., BASE=debian:... and MODULE=..., and -ldflags \"...\"", name)
	}
	d.stages, err = readStages(name, string(text))
	return d, err
}

func readStages(name, text string) (stages []stage, err error) {
	joined := strings.ReplaceAll(text, "\\\n", " ")
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
