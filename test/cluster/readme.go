//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/csikit/csikit/hack/images"
)

// readmeCommands returns the commands that a section of a README tells its reader to type, but
// those that build images: named are made already, and others are an error.
func readmeCommands(name, section string, named map[string]bool) (commands []string, err error) {
	scripts, err := readmeBlocks(name, section, "sh")
	if err != nil {
		return nil, err
	}
	for _, script := range scripts {
		for command := range strings.Lines(strings.ReplaceAll(script, "\\\n", " ")) {
			command = strings.TrimSpace(command)
			switch {
			case command == "", strings.HasPrefix(command, "#"):
			case strings.HasPrefix(command, "docker build "):
				f := strings.Fields(command)
				if i := slices.Index(f, "-t"); i < 0 || i+1 == len(f) || !named[images.Reference(f[i+1])] {
					return nil, fmt.Errorf("%s: no image of %s", name, command)
				}
			default:
				commands = append(commands, command)
			}
		}
	}
	if len(commands) == 0 {
		return nil, fmt.Errorf("%s: no commands in section %q", name, section)
	}
	return commands, nil
}

// readmeBlocks returns the blocks of a language in a section of a README.
func readmeBlocks(name, section, language string) (blocks []string, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	_, rest, found := strings.Cut(string(text), "\n## "+section+"\n")
	if !found {
		return nil, fmt.Errorf("%s has no section %q", name, section)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	for i, block := range strings.Split(rest, "\n```") {
		if text, is := strings.CutPrefix(block, language+"\n"); is && i%2 == 1 {
			blocks = append(blocks, text)
		}
	}
	return blocks, nil
}

// writeReadmeOverlay writes the overlay that a README tells its reader to create: the part's, if
// the repository does not have it. Only the cluster sees it.
func (r *rig) writeReadmeOverlay(p part) error {
	dir := filepath.Join(r.source, "examples", p.overlay)
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	driver, _, _ := strings.Cut(p.overlay, "/")
	blocks, err := readmeBlocks(filepath.Join(r.source, "examples", driver, "README.md"), "Deploying", "yaml")
	if err != nil {
		return err
	}
	if len(blocks) == 0 || !strings.Contains(blocks[0], "kind: Kustomization\n") {
		return fmt.Errorf("the README has no overlay to create for %s", p.overlay)
	}
	upper, work, parent := filepath.Join(r.dir, "written"), filepath.Join(r.dir, "work"), filepath.Dir(dir)
	if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755)); err != nil {
		return err
	}
	if err := mount("overlay", parent, "overlay", 0, "lowerdir="+parent+",upperdir="+upper+",workdir="+work); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(blocks[0]), 0o644)
}

// readmeOf returns the commands by which a part is deployed.
func (r *rig) readmeOf(p part) ([]string, error) {
	driver, _, _ := strings.Cut(p.overlay, "/")
	return readmeCommands(filepath.Join(r.source, "examples", driver, "README.md"), p.readme, r.named)
}

// enter runs a command in a shell, in the root of the repository.
func (r *rig) enter(ctx context.Context, command string) error {
	say("$ %s", strings.Join(strings.Fields(command), " "))
	cmd := exec.CommandContext(ctx, "sh", "-ec", command)
	cmd.Dir = r.source
	cmd.Env = append(os.Environ(), "KUBECONFIG="+r.ca.kubeconfig("admin"), "HOME="+r.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", command, errors.Join(err, context.Cause(ctx)), out)
	}
	return nil
}

// undo reverts a command.
func (r *rig) undo(ctx context.Context, command string) error {
	f := strings.Fields(command)
	switch {
	case len(f) > 3 && slices.Equal(f[:3], []string{"kubectl", "apply", "-k"}):
		return r.enter(ctx, "kubectl delete --timeout=2m -k "+f[3])
	case len(f) > 3 && slices.Equal(f[:3], []string{"helm", "upgrade", "--install"}):
		namespace := f[slices.Index(f, "--namespace")+1]
		return errors.Join(r.enter(ctx, "helm uninstall --wait --timeout=2m --namespace="+namespace+" "+f[3]),
			r.enter(ctx, "kubectl delete --timeout=2m namespace "+namespace))
	}
	return nil
}

// followReadme runs the commands after the first, which deployed the driver, and looks at what
// they created.
func followReadme(check func(*space) error) func(*space) error {
	return func(s *space) error {
		commands, err := s.readmeOf(s.part)
		if err != nil {
			return err
		}
		for _, c := range commands[1:] {
			if err := s.enter(s.ctx, c); err != nil {
				return err
			}
		}
		if err := check(s); err != nil {
			return err
		}
		for _, c := range slices.Backward(commands[1:]) {
			err = errors.Join(err, s.undo(s.ctx, c))
		}
		s.note = fmt.Sprintf("%d commands", len(commands))
		return err
	}
}

// samplesRun: every sample has come up, and the copies have the data.
func samplesRun(in *space) error {
	reader := *in
	s := &reader
	s.name = "default"
	if err := errors.Join(s.ready("writer", "raw"), s.wait("volumesnapshot/source", "jsonpath={.status.readyToUse}=true", time.Minute)); err != nil {
		return err
	}
	if _, err := s.kubectl("rollout", "status", "--timeout=2m", "statefulset/members"); err != nil {
		return err
	}
	if err := s.ready("restored", "cloned"); err != nil {
		return err
	}
	for _, pod := range []string{"restored", "cloned"} {
		if date, err := s.sh(pod, "cat /data/date"); err != nil || date == "" {
			return fmt.Errorf("the volume of pod %s has the date %q: %w", pod, date, err)
		}
	}
	return nil
}
