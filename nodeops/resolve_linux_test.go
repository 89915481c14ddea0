package nodeops

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/csikit/csikit/blocking"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// hookTracers calls a function when a span starts.
type hookTracers struct {
	tracenoop.TracerProvider
	hook func(span string)
}

type hookTracer struct {
	tracenoop.Tracer
	hook func(span string)
}

func (h hookTracers) Tracer(string, ...trace.TracerOption) trace.Tracer {
	return hookTracer{hook: h.hook}
}

func (h hookTracer) Start(ctx context.Context, name string, o ...trace.SpanStartOption) (context.Context, trace.Span) {
	h.hook(name)
	return h.Tracer.Start(ctx, name, o...)
}

// An operation works on the path that it has locked, even if a symlink on the way to it
// is replaced in between: here while the operation opens its device.
func TestSymlinkReplacedWhileLocked(t *testing.T) {
	for name, do := range map[string]func(f *fixture, path string) error{
		"stage": func(f *fixture, path string) error {
			r := f.stageRequest("ext4")
			r.StagingTargetPath = path
			return f.stage(r)
		},
		"publish": func(f *fixture, path string) error {
			return f.publishBlock("", func(r *PublishBlockRequest) { r.TargetPath = path })
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, 8*mib)
			link := filepath.Join(f.pods, "link")
			before, after := filepath.Join(f.pods, "before"), filepath.Join(f.pods, "after")
			for _, dir := range []string{before, after} {
				ok(t, os.Mkdir(dir, 0o755))
				if name == "stage" {
					ok(t, os.Mkdir(filepath.Join(dir, "v"), 0o755))
				}
			}
			ok(t, os.Symlink(before, link))

			var locked []blocking.Call
			var err error
			f.node, err = New(Config{DeviceWait: -1, TracerProvider: hookTracers{hook: func(span string) {
				if span == "nodeops.device" {
					locked = f.node.InFlight()
					ok(t, os.Remove(link))
					ok(t, os.Symlink(after, link))
				}
			}}})
			ok(t, err)
			ok(t, do(f, filepath.Join(link, "v")))

			want := filepath.Join(before, "v")
			if !slices.ContainsFunc(locked, func(c blocking.Call) bool { return c.Key == want }) {
				t.Errorf("locked is %+v, want %s", locked, want)
			}
			if at, err := f.node.MountedAt(t.Context(), Device{Path: f.dev.Path}); err != nil || !slices.Equal(at, []string{want}) {
				t.Errorf("mounted at %v, %v; want only %s", at, err, want)
			}
		})
	}
}
