//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// kubectl runs it as the administrator, and returns its output.
func (r *rig) kubectl(ctx context.Context, args ...string) (string, error) {
	return r.kubectlStdin(ctx, "", args...)
}

func (r *rig) kubectlStdin(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "kubectl", append([]string{"--kubeconfig", r.ca.kubeconfig("admin")}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return "", cause
		}
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.String(), nil
}

// A space is the namespace of a scenario.
type space struct {
	*rig
	ctx  context.Context
	part part
	name string
	note string // for the table
}

func (s *space) kubectl(args ...string) (string, error) {
	return s.rig.kubectl(s.ctx, append([]string{"-n", s.name}, args...)...)
}

func (s *space) apply(yaml string) error {
	_, err := s.kubectlStdin(s.ctx, yaml, "-n", s.name, "apply", "-f", "-")
	return err
}

// wait waits for a condition of "kubectl wait".
func (s *space) wait(what, condition string, timeout time.Duration) error {
	_, err := s.kubectl("wait", "--for="+condition, "--timeout="+timeout.String(), what)
	return err
}

func (s *space) ready(pods ...string) error {
	for _, pod := range pods {
		if err := s.wait("pod/"+pod, "condition=Ready", 3*time.Minute); err != nil {
			return err
		}
	}
	return nil
}

func (s *space) bound(claim string) error {
	return s.wait("pvc/"+claim, "jsonpath={.status.phase}=Bound", 2*time.Minute)
}

// sh runs a script in a pod.
func (s *space) sh(pod, script string) (string, error) {
	out, err := s.kubectl("exec", pod, "--", "sh", "-ec", script)
	return strings.TrimSpace(out), err
}

// want runs a script in a pod and compares its output.
func (s *space) want(pod, script, output string) error {
	got, err := s.sh(pod, script)
	if err == nil && got != output {
		err = fmt.Errorf("%s: %s: got %q, want %q", pod, script, got, output)
	}
	return err
}

func (s *space) get(what, path string) (string, error) {
	return s.kubectl("get", what, "-o", "jsonpath="+path)
}

func (s *space) delete(what ...string) error {
	_, err := s.kubectl(append([]string{"delete", "--timeout=2m", "--wait"}, what...)...)
	return err
}

// event waits for one that has all of the words in reason and message.
func (s *space) event(object string, words ...string) error {
	return s.poll(s.ctx, time.Minute, "event of "+object, func() error {
		out, err := s.kubectl("get", "events", "--field-selector", "involvedObject.name="+object, "-o", `jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`)
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			found := true
			for _, w := range words {
				found = found && strings.Contains(line, w)
			}
			if found {
				return nil
			}
		}
		return fmt.Errorf("none has %q:\n%s", words, out)
	})
}
