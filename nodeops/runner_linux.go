package nodeops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	osexec "os/exec"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/csikit/csikit/internal/process"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"
	"k8s.io/utils/exec"
)

// runner starts each program in a process group of its own, so that a timeout also kills
// its child processes, and a signal to the driver's group does not interrupt a mkfs.
type runner struct{ exec.Interface }

func newRunner() exec.Interface { return runner{exec.New()} }

func (runner) Command(name string, args ...string) exec.Cmd {
	return runner{}.CommandContext(context.Background(), name, args...)
}

func (runner) CommandContext(ctx context.Context, name string, args ...string) exec.Cmd {
	return cmd{process.Command(ctx, name, args...)}
}

type cmd struct{ *process.Cmd }

func (c cmd) SetDir(dir string)       { c.Dir = dir }
func (c cmd) SetStdin(in io.Reader)   { c.Stdin = in }
func (c cmd) SetStdout(out io.Writer) { c.Stdout = out }
func (c cmd) SetStderr(out io.Writer) { c.Stderr = out }
func (c cmd) SetEnv(env []string)     { c.Env = env }

func (c cmd) Run() error              { return wrapExit(c.Cmd.Run()) }
func (c cmd) Wait() error             { return wrapExit(c.Cmd.Wait()) }
func (c cmd) Output() ([]byte, error) { b, err := c.Cmd.Output(); return b, wrapExit(err) }
func (c cmd) CombinedOutput() ([]byte, error) {
	b, err := c.Cmd.CombinedOutput()
	return b, wrapExit(err)
}

func wrapExit(err error) error {
	if ee := (*osexec.ExitError)(nil); errors.As(err, &ee) {
		return &exec.ExitErrorWrapper{ExitError: ee}
	}
	return err
}

// program is a program to run.
type program struct {
	name      string
	args      []string
	timeout   time.Duration // 0: none
	input     *os.File      // standard input; nil: empty
	sensitive []string      // mount flags in args that must appear neither in logs nor in errors
}

// command runs a program and returns its exit status and output. A timeout of 0 means
// none: a mkfs is never interrupted, also not by the end of ctx.
func (n *Node) command(ctx context.Context, timeout time.Duration, name string, args ...string) (status int, output string, err error) {
	return n.execute(ctx, program{name: name, args: args, timeout: timeout})
}

// execute is command with further parameters.
//
// The output goes to a memory file, not a pipe: a mkfs that outlives this process must not
// be interrupted by SIGPIPE.
func (n *Node) execute(ctx context.Context, p program) (status int, output string, err error) {
	ctx, done := n.telemetry.step(context.WithoutCancel(ctx), path.Base(p.name))
	defer func() {
		trace.SpanFromContext(ctx).SetAttributes(attribute.Int("process.exit.code", status))
		done(err)
	}()
	if p.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.timeout)
		defer cancel()
	}
	fd, err := unix.MemfdCreate(path.Base(p.name), unix.MFD_CLOEXEC)
	if err != nil {
		return 0, "", os.NewSyscallError("memfd_create", err)
	}
	out := os.NewFile(uintptr(fd), p.name)
	defer out.Close()

	hide := hider(p.sensitive)
	shown := make([]string, 0, 1+len(p.args))
	for _, a := range append([]string{p.name}, p.args...) {
		shown = append(shown, hide.Replace(a))
	}
	c := n.exec.CommandContext(ctx, p.name, p.args...)
	if p.input != nil {
		c.SetStdin(p.input)
	}
	c.SetStdout(out)
	c.SetStderr(out)
	start := time.Now()
	err = c.Run()
	text, readErr := io.ReadAll(io.NewSectionReader(out, 0, 64<<10))
	output = hide.Replace(strings.TrimSpace(string(text)))
	n.log.Debug("ran a program", "command", shown,
		"duration", time.Since(start), "error", err, "output", output)

	var exit exec.ExitError
	switch {
	case ctx.Err() != nil && err != nil:
		return 0, output, fmt.Errorf("%s was killed after the timeout of %v: %w: %s", p.name, p.timeout, ctx.Err(), output)
	case errors.Is(err, exec.ErrExecutableNotFound):
		return 0, "", fmt.Errorf("%s is not installed, or not on PATH: %w", p.name, err)
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitStatus(), output, readErr
	case err != nil:
		return 0, output, fmt.Errorf("%s: %w: %s", p.name, err, output)
	}
	return 0, output, readErr
}

// hider returns a replacer that hides the given mount flags, and their values anywhere else.
func hider(sensitive []string) *strings.Replacer {
	hidden := make(map[string]string)
	for _, option := range sensitive {
		key, value, ok := strings.Cut(option, "=")
		if !ok {
			value = option
		} else {
			hidden[option] = key + "=(hidden)"
		}
		if value != "" {
			hidden[value] = "(hidden)"
		}
	}
	// The longest first: if one is a prefix of another, the rest of the longer one would be
	// shown otherwise.
	var pairs []string
	for _, text := range slices.SortedFunc(maps.Keys(hidden), func(a, b string) int { return len(b) - len(a) }) {
		pairs = append(pairs, text, hidden[text])
	}
	return strings.NewReplacer(pairs...)
}
