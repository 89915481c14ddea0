//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/csikit/csikit/hack/images"
)

// previousTag is that of the images of an earlier commit.
const previousTag = "previous"

// A previousDriver is blockdriver of an earlier commit.
type previousDriver struct {
	Commit string // its name, for the table
	Source string // its tree
}

// addPrevious adds the images of blockdriver of the last tag before this commit, or without one of
// its parent. There is none if the repository is a shallow clone.
func addPrevious(ctx context.Context, cache, dir string, a *images.Archive) (p previousDriver, err error) {
	git := func(args ...string) string {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", "../.."}, args...)...).Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}
	commit := git("rev-parse", "--verify", "--quiet", "HEAD~1")
	if commit == "" {
		return p, nil
	}
	p.Commit = git("rev-parse", "--short", commit)
	if tag := git("describe", "--tags", "--abbrev=0", commit); tag != "" {
		commit, p.Commit = tag, tag
	}
	p.Source = filepath.Join(dir, "previous")
	script := exec.CommandContext(ctx, "sh", "-ec", `mkdir "$2" && git -C ../.. archive -o "$2.tar" "$1" && tar -xf "$2.tar" -C "$2" && rm "$2.tar"`, "sh", commit, p.Source)
	if out, err := script.CombinedOutput(); err != nil {
		return p, fmt.Errorf("the tree of %s: %w: %s", commit, err, out)
	}
	b := images.Builder{Root: p.Source, Cache: cache, Version: previousTag, At: time.Now(), Current: true, Log: say}
	all, err := b.Images(ctx, "blockdriver", runtime.GOARCH)
	if err != nil {
		return p, fmt.Errorf("%s: %w", commit, err)
	}
	for _, i := range all {
		if _, err := a.Add(i.Name+":"+previousTag, i); err != nil {
			return p, err
		}
	}
	return p, nil
}

// update: from the manifests and images of an earlier commit to those of this one, while pods on
// both nodes write and claims are made.
func update(s *space) error {
	if s.previous.Commit == "" {
		return errNotTested("the repository has no earlier commit")
	}
	dir := filepath.Join(s.dir, "overlay-"+previousTag)
	overlay, err := filepath.Rel(dir, filepath.Join(s.previous.Source, "examples", s.part.overlay))
	if err != nil {
		return err
	}
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [" + overlay + "]\nimages:\n"
	for _, target := range drivers["blockdriver"] {
		text += "  - {name: blockdriver-" + target + ", newTag: " + previousTag + "}\n"
	}
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644)); err != nil {
		return err
	}
	rollout := func() (err error) {
		for _, what := range s.part.ready {
			_, e := s.rig.kubectl(s.ctx, "-n", s.part.namespace, "rollout", "status", "--timeout=5m", what)
			err = errors.Join(err, e)
		}
		return err
	}
	if _, err := s.rig.kubectl(s.ctx, "apply", "-k", dir); err != nil {
		return err
	}
	if err := errors.Join(rollout(), s.driversHave(":"+previousTag)); err != nil {
		return err
	}
	counters := map[string]string{"p1": "node1", "p2": "node2"}
	for pod, node := range counters {
		if err := s.startCounter(pod, "blockdriver-ext4", on(node)); err != nil {
			return err
		}
	}
	start := time.Now()
	if err := s.rig.apply(s.ctx, s.part); err != nil {
		return err
	}
	// Made while the driver is replaced.
	for i, node := range []string{"node1", "node2"} {
		name := fmt.Sprintf("during%d", i)
		if err := errors.Join(s.apply(claim(name, "blockdriver-ext4", "64Mi")+pod(name, name, on(node))), s.ready(name)); err != nil {
			return err
		}
	}
	if err := errors.Join(rollout(), s.driversHave(":dev")); err != nil {
		return err
	}
	s.note = fmt.Sprintf("from %s in %.0f s", s.previous.Commit, time.Since(start).Seconds())
	for _, pod := range []string{"p1", "p2"} {
		n, err := s.counted(pod, 5)
		if err == nil {
			n, err = s.counted(pod, n)
		}
		if err != nil {
			return err
		}
		gap, err := s.sh(pod, `awk 'NR > 1 && $2 - last > gap {gap = $2 - last} {last = $2} END {printf "%.2f", gap}' /data/n`)
		if err != nil {
			return err
		}
		s.note += fmt.Sprintf("; %s: %d fsync'ed writes, none lost, longest gap %s s", pod, n, gap)
		if err := s.neverRestarted(pod); err != nil {
			return err
		}
	}
	// What was mounted by the earlier one is unmounted by this one.
	return s.delete("pod", "p1", "p2")
}

// driversHave: every container of the driver has an image with a tag.
func (s *space) driversHave(tag string) error {
	return s.poll(s.ctx, 2*time.Minute, "images of the driver's pods", func() error {
		out, err := s.rig.kubectl(s.ctx, "-n", s.part.namespace, "get", "pods", "-o", `jsonpath={range .items[*]}{.spec.containers[?(@.name=="driver")].image} {end}`)
		if err != nil {
			return err
		}
		for _, image := range strings.Fields(out) {
			if !strings.HasSuffix(image, tag) {
				return errors.New(out)
			}
		}
		return nil
	})
}
