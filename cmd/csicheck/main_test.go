package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/refdriver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) {
	gate.Main(m, gate.WithRole("driver", driverProcess), gate.WithRole("csicheck", func() {
		os.Setenv("CSIKIT_TEST_ROLE", "csicheck") // for isolate
		main()
	}))
}

// driverProcess is a driver as a program: its argument is the socket.
func driverProcess() {
	os.Remove(os.Args[1]) // of the one that was killed
	lis, err := net.Listen("unix", os.Args[1])
	if err == nil {
		fmt.Println("greeting", os.Getenv("GREETING"))
		d := &refdriver.Driver{State: refdriver.NewState(), Validate: func(m proto.Message) error { return csispec.Validate(m) }}
		err = d.Serve(context.Background(), lis, nil, nil)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "chk") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// serve serves the reference driver, with interceptors, until the test ends.
func serve(t *testing.T, unary ...grpc.UnaryServerInterceptor) (endpoint, dir string) {
	dir = socketDir(t)
	lis, err := net.Listen("unix", filepath.Join(dir, "csi.sock"))
	if err != nil {
		t.Fatal(err)
	}
	d := &refdriver.Driver{State: refdriver.NewState(), Validate: func(m proto.Message) error { return csispec.Validate(m) }}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Serve(ctx, lis, unary, nil) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "unix://" + lis.Addr().String(), dir
}

func csicheck(t *testing.T, args ...string) (out string, ok bool, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	ok, err = run(t.Context(), args, &stdout, &stderr)
	return stdout.String(), ok, err
}

func has(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q is missing in:\n%s", w, text)
		}
	}
}

func TestCheck(t *testing.T) {
	endpoint, dir := serve(t)
	report := filepath.Join(dir, "report.json")
	out, ok, err := csicheck(t, "-endpoint", endpoint, "-kernel", "no", "-size", "67108864", "-json", report, "-junit", filepath.Join(dir, "r.xml"))
	if !ok || err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	has(t, out, "ref.csikit.dev 1: passed.", "give -start or -restart", "give -second-node", "give -kernel")
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var parsed struct {
		OK    bool
		Rules []struct{ ID, Outcome, Flag string }
	}
	if err := json.Unmarshal(text, &parsed); err != nil || !parsed.OK || len(parsed.Rules) < 100 {
		t.Errorf("the JSON report: %v, %d rules", err, len(parsed.Rules))
	}
}

func TestFailure(t *testing.T) {
	endpoint, _ := serve(t, func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if r, ok := req.(*csi.ListVolumesRequest); ok {
			r.MaxEntries = max(r.MaxEntries, 0)
		}
		return handler(ctx, req)
	})
	var stdout, progress bytes.Buffer
	ok, err := run(t.Context(), []string{"-endpoint", endpoint, "-kernel", "no", "-rules", "controller.list."}, &stdout, &progress)
	if ok || err != nil {
		t.Errorf("ok: %v, %v", ok, err)
	}
	out := stdout.String()
	has(t, progress.String(), "failed MUST controller.list.negative-max: ", "\n    got OK ")
	has(t, out, "FAILED MUST controller.list.negative-max", `sent      ListVolumes {"max_entries":-1}`, "wanted    InvalidArgument",
		"reproduce csicheck -endpoint "+endpoint+" -kernel no call ListVolumes '{\"max_entries\":-1}'", "8 rules passed, 1 MUST and 0 SHOULD failed")
}

// An RPC that fails for every rule is one cause.
func TestOneCause(t *testing.T) {
	endpoint, dir := serve(t, func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if r, ok := req.(*csi.ControllerGetVolumeRequest); ok {
			return nil, status.Errorf(codes.Internal, "panic: no volume %q", r.GetVolumeId())
		}
		return handler(ctx, req)
	})
	file := filepath.Join(dir, "report.json")
	out, ok, err := csicheck(t, "-endpoint", endpoint, "-kernel", "no", "-json", file, "-rules", "controller.get.agrees,controller.get.volume-missing,controller.get.after-expand")
	if ok || err != nil {
		t.Fatal(ok, err)
	}
	has(t, out, "FAILED MUST controller.get.agrees", "2 more rules failed for the same cause:\n    controller.get.volume-missing controller.get.after-expand", "3 MUST and 0 SHOULD failed, for one cause")
	if n := strings.Count(out, "FAILED MUST"); n != 1 {
		t.Errorf("%d failures are printed:\n%s", n, out)
	}
	report, err := readReport(file)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"", "controller.get.agrees", "controller.get.agrees"} {
		if got := report.Rules[i].Cause; got != want {
			t.Errorf("%s: the cause of %q, want %q", report.Rules[i].ID, got, want)
		}
	}
}

// Interrupted in the middle, it cleans up and says so.
func TestInterrupt(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	endpoint, _ := serve(t, func(c context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(c, req)
		if _, ok := req.(*csi.NodeStageVolumeRequest); ok {
			interrupt()
		}
		return resp, err
	})
	var stdout, stderr bytes.Buffer
	ok, err := run(ctx, []string{"-endpoint", endpoint, "-kernel", "no", "-rules", "node."}, &stdout, &stderr)
	if ok || err != nil {
		t.Errorf("ok: %v, %v", ok, err)
	}
	has(t, stdout.String(), "interrupted", "not run, interrupted")
	if out, _, _ := csicheck(t, "-endpoint", endpoint, "call", "ListVolumes"); strings.Contains(out, "volume_id") || strings.Contains(stdout.String(), "LEFT BEHIND") {
		t.Errorf("left behind: %s\n%s", out, stdout.String())
	}
}

// What -inventory prints is compared with what it printed before.
func TestInventory(t *testing.T) {
	endpoint, dir := serve(t)
	count := filepath.Join(dir, "count") // is longer each time
	for command, want := range map[string]string{"echo same": "passed.", "echo x >>" + count + "; cat " + count: "left: x"} {
		out, ok, err := csicheck(t, "-endpoint", endpoint, "-kernel", "no", "-inventory", command, "-rules", "leaks.storage,controller.create.idempotent")
		if err != nil || ok != (want == "passed.") {
			t.Errorf("%s: %t, %v", command, ok, err)
		}
		has(t, out, want)
	}
	if _, _, err := csicheck(t, "-endpoint", endpoint, "-kernel", "no", "-inventory", "echo no pool >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "no pool") {
		t.Errorf("a command that fails: %v", err)
	}
}

func TestForeignVolumes(t *testing.T) {
	endpoint, _ := serve(t)
	out, ok, err := csicheck(t, "-endpoint", endpoint, "call", "CreateVolume",
		`{"name": "mine", "volume_capabilities": [{"mount": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}]}`)
	if !ok || err != nil {
		t.Fatal(out, err)
	}
	has(t, out, `"volume_id"`, "OK in ")
	if _, _, err := csicheck(t, "-endpoint", endpoint); err == nil || !strings.Contains(err.Error(), "-foreign-volumes") {
		t.Errorf("a driver with volumes: %v", err)
	}
	if out, ok, err := csicheck(t, "-endpoint", endpoint, "-foreign-volumes", "-dry-run"); err != nil {
		t.Error(out, ok, err)
	}
}

func TestWords(t *testing.T) {
	out, _, err := csicheck(t, "explain", "node.publish.readonly-enforced")
	if err != nil {
		t.Error(err)
	}
	has(t, out, "MUST", "NodePublishVolume", "It needs", "(-kernel)", "It checks these sentences", "NodePublishVolumeRequest.readonly/")
	if out, _, err = csicheck(t, "-rules", "spec:nodepublishvolumerequest.readonly/", "-list"); err != nil || !strings.Contains(out, "node.publish.readonly-enforced") || strings.Count(out, "\n") > 10 {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, err = csicheck(t, "-h"); !errors.Is(err, flag.ErrHelp) {
		t.Error(err)
	}
	has(t, out, "Usage:", "-start", "explain")
	if out, _, _ = csicheck(t, "-list"); strings.Count(out, "\n") < 100 {
		t.Errorf("-list:\n%s", out)
	}
	if out, _, _ = csicheck(t, "-rules", "node.publish.", "-list"); strings.Count(out, "\n") < 10 || strings.Contains(out, "controller.") {
		t.Errorf("-list of some:\n%s", out)
	}
	for _, args := range [][]string{
		{}, {"-nonsense"}, {"explain", "nonsense"}, {"-endpoint", "unix:///x.sock", "call", "Nonsense"},
		{"-endpoint", "unix:///x.sock", "-start", "a", "-restart", "b"}, {"-endpoint", "unix:///x.sock", "call", "Probe", "nonsense"},
		{"-endpoint", "unix:///x.sock", "-rules", "nonsense"},
	} {
		if _, ok, err := csicheck(t, args...); ok || err == nil {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// The walk of a driver without mounts: every step is there, and what it cannot do is said.
func TestWalk(t *testing.T) {
	endpoint, dir := serve(t)
	page := filepath.Join(dir, "walk.html")
	out, ok, err := csicheck(t, "-endpoint", endpoint, "-kernel", "no", "-html", page, "walk", "ext4", "block")
	if !ok || err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	has(t, out, "ext4       block", "CreateVolume, 1024 MiB", "NodePublishVolume to pod b", "skipped: needs a way to kill and start the driver", "NodeExpandVolume", "DeleteVolume")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	has(t, string(text), "<!DOCTYPE html>", "NodeStageVolume volume-", `class="controller"`)
}

// A driver on which two pods cannot share a volume learns what it lacks.
func TestWalkOfOnePod(t *testing.T) {
	endpoint, _ := serve(t, func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		if r, ok := resp.(*csi.NodeGetCapabilitiesResponse); ok {
			r.Capabilities = slices.DeleteFunc(r.Capabilities, func(c *csi.NodeServiceCapability) bool {
				return c.GetRpc().GetType() == csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
			})
		}
		return resp, err
	})
	out, ok, err := csicheck(t, "-endpoint", endpoint, "-kernel", "no", "walk", "ext4")
	if !ok || err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	has(t, out, "without SINGLE_NODE_MULTI_WRITER, two pods of a node cannot share")
	if strings.Contains(out, "pod b") {
		t.Error("there is a second pod")
	}
}

// A walk that fails says where and how.
func TestWalkFails(t *testing.T) {
	endpoint, _ := serve(t, func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if _, ok := req.(*csi.NodePublishVolumeRequest); ok {
			return nil, status.Error(codes.PermissionDenied, "no")
		}
		return handler(ctx, req)
	})
	out, ok, err := csicheck(t, "-endpoint", endpoint, "-kernel", "no", "walk", "ext4")
	if ok || err != nil {
		t.Errorf("ok: %v, %v", ok, err)
	}
	has(t, out, "FAILED", "sent      NodePublishVolume", `got       PermissionDenied "no"`)
}

func TestLoad(t *testing.T) {
	endpoint, _ := serve(t)
	out, ok, err := csicheck(t, "-endpoint", endpoint, "-kernel", "no", "load", "-volumes", "12", "-clients", "4")
	if !ok || err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	has(t, out, "12 volumes with 4 clients: up in ", "p99 ms", "NodePublishVolume                 12       0")
	if _, ok, err := csicheck(t, "-endpoint", endpoint, "load", "-clients", "0"); ok || err == nil {
		t.Error("no clients")
	}
}

// A page shows what the driver said as text.
func TestPageEscapes(t *testing.T) {
	endpoint, dir := serve(t, func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if _, ok := req.(*csi.DeleteSnapshotRequest); ok {
			return nil, status.Error(codes.Internal, "<script>alert(1)</script>")
		}
		return handler(ctx, req)
	})
	page := filepath.Join(dir, "report.html")
	if _, ok, err := csicheck(t, "-endpoint", endpoint, "-kernel", "no", "-html", page, "-rules", "controller.snapshot.delete-idempotent"); ok || err != nil {
		t.Fatal(ok, err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	has(t, string(text), "&lt;script&gt;alert")
	if strings.Contains(string(text), "<script") {
		t.Error("there is a script in the page")
	}
}

// A failure is known from an earlier report, and compare shows what has changed.
func TestBaseline(t *testing.T) {
	broken := false
	endpoint, dir := serve(t, func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if r, ok := req.(*csi.DeleteVolumeRequest); ok && broken && r.GetVolumeId() != "" && !strings.HasPrefix(r.GetVolumeId(), "vol") {
			return nil, status.Error(codes.NotFound, "no such volume")
		}
		return handler(ctx, req)
	})
	const rule = "controller.delete.idempotent"
	check := func(args ...string) (string, bool) {
		t.Helper()
		out, ok, err := csicheck(t, append([]string{"-endpoint", endpoint, "-kernel", "no", "-size", "1048576", "-rules", "controller.delete."}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out, ok
	}
	good, bad := filepath.Join(dir, "good.json"), filepath.Join(dir, "bad.json")
	if out, ok := check("-json", good); !ok {
		t.Fatal(out)
	}
	broken = true
	out, ok := check("-json", bad)
	if ok {
		t.Fatal(out)
	}
	if out, ok = check("-baseline", good); ok {
		t.Errorf("a new failure passes:\n%s", out)
	}
	if out, ok = check("-baseline", bad); !ok {
		t.Errorf("a known failure fails:\n%s", out)
	}
	has(t, out, "KNOWN FAILURE MUST "+rule, "passed.", "0 MUST and 0 SHOULD failed, 1 known failures")
	if out, ok, err := csicheck(t, "compare", good, bad); ok || err != nil {
		t.Errorf("ok: %t, %v\n%s", ok, err, out)
	} else {
		has(t, out, rule, "1 of ")
	}
	if out, ok, err := csicheck(t, "compare", bad, good); !ok || err != nil {
		t.Errorf("ok: %t, %v\n%s", ok, err, out)
	}
	if _, _, err := csicheck(t, "compare", good, endpoint); err == nil {
		t.Error("a report that does not exist")
	}
	if _, _, err := csicheck(t, "-endpoint", endpoint, "-format", "xml"); err == nil || !strings.Contains(err.Error(), "github") {
		t.Errorf("-format xml: %v", err)
	}
}

// With -strict a SHOULD counts.
func TestStrict(t *testing.T) {
	endpoint, _ := serve(t, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		if r, ok := resp.(*csi.ListVolumesResponse); ok {
			for _, e := range r.GetEntries() {
				e.Volume = &csi.Volume{VolumeId: e.GetVolume().GetVolumeId(), CapacityBytes: e.GetVolume().GetCapacityBytes() + 1}
			}
		}
		return resp, err
	})
	for _, strict := range []bool{false, true} {
		args := []string{"-endpoint", endpoint, "-kernel", "no", "-size", "1048576", "-rules", "controller.list.capacity-agrees"}
		if strict {
			args = append(args, "-strict")
		}
		out, ok, err := csicheck(t, args...)
		if err != nil || ok == strict {
			t.Errorf("strict %t: ok %t, %v\n%s", strict, ok, err, out)
		}
		has(t, out, "FAILED SHOULD")
	}
}
