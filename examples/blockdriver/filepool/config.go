package filepool

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/csikit/csikit/topology"
)

// poolConfig is a pool as the settings describe it.
type poolConfig struct {
	Name     string // for people
	Dir      string
	Segments topology.Segments // from where its volumes are accessible; none: from everywhere
}

// defaultPool is the name of a pool that is only a directory.
const defaultPool = "default"

var poolNamePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// poolFlags collects the values of -pool.
type poolFlags struct {
	texts []string
	list  []poolConfig
}

func (f *poolFlags) String() string { return strings.Join(f.texts, ";") }

func (f *poolFlags) Set(text string) error {
	for t := range strings.SplitSeq(text, ";") {
		if t = strings.TrimSpace(t); t != "" {
			f.texts = append(f.texts, t)
		}
	}
	return nil
}

func (f *poolFlags) parse() error {
	f.list = nil
	for _, text := range f.texts {
		p, err := parsePool(text)
		if err != nil {
			return fmt.Errorf("-pool %q: %w", text, err)
		}
		for _, other := range f.list {
			if other.Name == p.Name {
				return fmt.Errorf("-pool %q: another pool has the name %s; write name=directory", text, p.Name)
			}
			if other.Dir == p.Dir {
				return fmt.Errorf("-pool %q: the pool %s has the same directory", text, other.Name)
			}
		}
		f.list = append(f.list, p)
	}
	return nil
}

// parsePool reads "directory" or "name=directory,segment=value,...".
func parsePool(text string) (p poolConfig, err error) {
	p = poolConfig{Name: defaultPool, Dir: text}
	if filepath.IsAbs(text) && strings.Contains(text, ",") {
		return p, fmt.Errorf("a pool with segments has a name: write name=%s", text)
	}
	if !filepath.IsAbs(text) {
		head, segments, _ := strings.Cut(text, ",")
		name, dir, found := strings.Cut(head, "=")
		if !found || !filepath.IsAbs(dir) {
			return p, fmt.Errorf("want an absolute path, or name=/path and its segments, each behind a comma: segment=value")
		}
		if !poolNamePattern.MatchString(name) {
			return p, fmt.Errorf("the name %q: want up to 63 letters, digits, '.', '_' and '-'", name)
		}
		p.Name, p.Dir = name, dir
		if p.Segments, err = topology.Parse(segments); err != nil {
			return p, err
		}
	}
	p.Dir = filepath.Clean(p.Dir)
	return p, nil
}
