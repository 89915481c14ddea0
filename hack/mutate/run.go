package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// A status is what became of a mutant.
type status string

const (
	killed   status = "killed"
	survived status = "survived"
	timedOut status = "timed out" // counts as killed
	notBuilt status = "not built"
	failed   status = "failed" // neither: the -run command could not do its work
)

// A result is a line of the file of results.
type result struct {
	ID      string  `json:"id"`
	Sum     string  `json:"sum"` // of the file that is mutated
	Where   string  `json:"where"`
	Status  status  `json:"status"`
	Why     string  `json:"why"` // the last line of the output
	Seconds float64 `json:"seconds"`
}

// A runner builds and runs mutants.
type runner struct {
	build, run string
	module     string // the directory where -build runs
	work       string
	timeout    time.Duration
	without    []string // absolute paths of files that are left out of the build

	mu      sync.Mutex
	results map[string]result // by ID
	file    *os.File
}

// open reads the results of the runs before.
func (r *runner) open() error {
	if err := os.MkdirAll(r.work, 0o700); err != nil {
		return err
	}
	name := filepath.Join(r.work, "results.jsonl")
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	r.results = map[string]result{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		var x result
		if json.Unmarshal(lines.Bytes(), &x) == nil { // the last line may be half a line
			r.results[x.ID] = x
		}
	}
	r.file, err = os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	return err
}

// known returns the result of a run before, unless its file has changed.
func (r *runner) known(m *mutant) (result, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x, ok := r.results[m.ID]
	return x, ok && x.Sum == m.source.sum && x.Status != failed
}

func (r *runner) keep(x result) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results[x.ID] = x
	line, err := json.Marshal(x)
	if err != nil {
		return err
	}
	_, err = r.file.Write(append(line, '\n'))
	return err
}

// base builds and runs the driver without a mutation, which has to survive.
func (r *runner) base(ctx context.Context) error {
	out := filepath.Join(r.work, "base")
	if err := os.MkdirAll(out, 0o700); err != nil {
		return err
	}
	overlay, err := r.overlay(out, map[string]string{})
	if err != nil {
		return err
	}
	if s, why := r.do(ctx, out, overlay); s != survived {
		return fmt.Errorf("without a mutation: %s: %s; see %s", s, why, filepath.Join(out, "log"))
	}
	return nil
}

// overlay writes the file of -overlay.
func (r *runner) overlay(out string, replace map[string]string) (path string, err error) {
	for _, file := range r.without {
		replace[file] = ""
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path = filepath.Join(out, "overlay.json")
	return path, os.WriteFile(path, text, 0o600)
}

// try builds and runs the mutant.
func (r *runner) try(ctx context.Context, m *mutant) (result, error) {
	begin := time.Now()
	out := filepath.Join(r.work, m.ID)
	if err := os.MkdirAll(out, 0o700); err != nil {
		return result{}, err
	}
	file, help := filepath.Join(out, "mutant.go"), filepath.Join(out, "helpers.go")
	overlay, err := r.overlay(out, map[string]string{m.source.path: file, filepath.Join(m.source.dir, "zz_mutant.go"): help})
	err = errors.Join(err, os.WriteFile(file, m.content(), 0o600), os.WriteFile(help, fmt.Appendf(nil, helpers, m.source.pkg), 0o600))
	if err != nil {
		return result{}, err
	}
	x := result{ID: m.ID, Sum: m.source.sum, Where: m.where() + " " + m.Op}
	x.Status, x.Why = r.do(ctx, out, overlay)
	x.Seconds = time.Since(begin).Seconds()
	if ctx.Err() != nil {
		return x, ctx.Err()
	}
	if x.Status != survived && x.Status != failed {
		_ = os.RemoveAll(out) // only to save space
	}
	return x, r.keep(x)
}

// do returns the status, and the last line of the output.
func (r *runner) do(ctx context.Context, out, overlay string) (status, string) {
	log, err := os.Create(filepath.Join(out, "log"))
	if err != nil {
		return failed, err.Error()
	}
	defer log.Close()
	dir := filepath.Join(out, "dir")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return failed, err.Error()
	}
	env := append(os.Environ(), "GOWORK=off", "OVERLAY="+overlay, "OUT="+out, "BASE="+filepath.Join(r.work, "base"), "DIR="+dir)
	limited, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	build := exec.CommandContext(limited, "/bin/sh", "-c", r.build)
	build.Dir, build.Env, build.Stdout, build.Stderr = r.module, env, log, log
	if err := build.Run(); err != nil {
		if limited.Err() != nil {
			return failed, "the build takes too long"
		}
		return notBuilt, lastLine(log.Name())
	}
	limited, cancel = context.WithTimeout(ctx, r.timeout)
	defer cancel()
	err = inCage(limited, dir, r.run, env, log)
	var exit *exec.ExitError
	switch {
	case limited.Err() != nil:
		return timedOut, lastLine(log.Name())
	case err == nil:
		return survived, ""
	case errors.As(err, &exit) && exit.ExitCode() == 1:
		return killed, lastLine(log.Name())
	}
	return failed, fmt.Sprintf("%v: %s", err, lastLine(log.Name()))
}

func lastLine(path string) string {
	text, _ := os.ReadFile(path)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}
