package csitest

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ref") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// A driver that dies fails the rule under way, is started again, and the other rules
// go on.
func TestDriverThatDies(t *testing.T) {
	socket := filepath.Join(socketDir(t), "csi.sock")
	report, err := Check(t.Context(), Target{Endpoint: "unix://" + socket, Start: func() *exec.Cmd {
		return gate.RoleCommand(t.Context(), "reference", socket, "ValidateVolumeCapabilities")
	}}, Config{Rules: []string{"controller.validate.confirms", "controller.delete.idempotent", "controller.attach.*"}, Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	failed := report.ResultsWith(Failed)
	if len(failed) != 1 || failed[0].Rule.ID != "controller.validate.confirms" || len(report.ResultsWith(Passed)) != 1 {
		t.Fatalf("%+v", report.Results)
	}
	last := failed[0].Failures[len(failed[0].Failures)-1].String()
	for _, words := range []string{"the driver keeps running", "exit status 2", "at the disco"} {
		if !strings.Contains(last, words) {
			t.Errorf("%q is missing in %s", words, last)
		}
	}
}

// Of a driver that does not start, no directory is left.
func TestDriverThatDoesNotStart(t *testing.T) {
	dir := t.TempDir()
	_, err := Check(t.Context(), Target{Endpoint: "unix://" + filepath.Join(dir, "csi.sock"), Start: func() *exec.Cmd {
		return gate.RoleCommand(t.Context(), "reference", filepath.Join(dir, "missing", "csi.sock"))
	}}, Config{Dir: dir})
	if err == nil {
		t.Error("it was checked")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// A driver of two processes is killed and started as a whole.
func TestTwoProcesses(t *testing.T) {
	dir := socketDir(t)
	node, controller := filepath.Join(dir, "node.sock"), filepath.Join(dir, "ctl.sock")
	started := map[string]int{}
	start := func(socket string) func() *exec.Cmd {
		return func() *exec.Cmd {
			started[socket]++
			return gate.RoleCommand(t.Context(), "reference", socket)
		}
	}
	target := Target{
		Endpoint: "unix://" + node, ControllerEndpoint: "unix://" + controller,
		Start: start(node), StartController: start(controller),
	}
	report, err := Check(t.Context(), target, Config{Rules: []string{"identity.info.*", "restart.volumes-kept"}, Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if failed := report.ResultsWith(Failed); len(failed) != 1 || failed[0].Rule.ID != "restart.volumes-kept" { // its volumes are in memory
		t.Errorf("%+v", failed)
	}
	if started[node] != 2 || started[controller] != 2 {
		t.Errorf("started: %v, want each twice", started)
	}
	target.ControllerEndpoint = ""
	if _, err := Check(t.Context(), target, Config{}); err == nil {
		t.Error("a controller without an endpoint")
	}
}

// A driver that keeps a descriptor for every volume is found. One that does not is not found, nor
// one that opens many at once, and keeps them for the volumes to come.
func TestLeaks(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("it takes /proc")
	}
	t.Parallel()
	for _, defect := range []string{"none", "pool", "leak"} {
		socket := filepath.Join(socketDir(t), "csi.sock")
		report, err := Check(t.Context(), Target{Endpoint: "unix://" + socket, Start: func() *exec.Cmd {
			return gate.RoleCommand(t.Context(), "reference", socket, defect)
		}}, Config{Rules: []string{"leaks.process"}, Size: 1 << 20, CheckMounts: true})
		if err != nil {
			t.Fatal(err)
		}
		failed := report.ResultsWith(Failed)
		if leaks := defect == "leak"; len(failed) == 1 != leaks || leaks && !strings.Contains(failed[0].Failures[0].Got, "descriptors") {
			t.Errorf("%s: %+v", defect, report.Results)
		}
	}
}

// A driver whose library takes any bytes for a string is found.
func TestNoUTF8(t *testing.T) {
	lis, err := net.Listen("unix", filepath.Join(socketDir(t), "csi.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		var req, resp []byte
		if err := stream.RecvMsg(&req); err != nil {
			return err
		}
		if method, _ := grpc.MethodFromServerStream(stream); strings.HasSuffix(method, "ControllerGetCapabilities") {
			resp, _ = proto.Marshal(&csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{
				Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}},
			}}})
		}
		return stream.SendMsg(&resp)
	}))
	done := make(chan error, 1)
	go func() { done <- s.Serve(lis) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	report, err := Check(t.Context(), Target{Endpoint: "unix://" + lis.Addr().String()}, Config{Rules: []string{"hostile.utf8"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.ResultsWith(Failed)) != 1 {
		t.Errorf("%+v", report.Results)
	}
}

// A driver that keeps its volumes only in memory does not survive torture.
func TestTorture(t *testing.T) {
	socket := filepath.Join(socketDir(t), "csi.sock")
	var last TortureProgress
	report, err := Torture(t.Context(), Target{Endpoint: "unix://" + socket, Start: func() *exec.Cmd {
		return gate.RoleCommand(t.Context(), "reference", socket)
	}}, Config{Size: 1 << 20}, TortureConfig{Kills: 50, Seed: 1, Progress: func(p TortureProgress) { last = p }})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.ResultsWith(Failed)) != 1 || last.Kills == 0 || last.Calls == 0 {
		t.Errorf("%+v, %+v", last, report.Results)
	}
}

// The adapter has a subtest for every rule.
func TestRun(t *testing.T) {
	target, cfg := reference(t, defect{})
	cfg.Rules = []string{"identity."}
	Run(t, target, cfg)
}

// A list that begins again and again is noticed at once.
func TestListWithoutEnd(t *testing.T) {
	target, cfg := reference(t, defect{unary: before(func(r *csi.ListVolumesRequest) { r.StartingToken = "" })})
	cfg.Rules = []string{"controller.list.pages"}
	report, err := Check(t.Context(), target, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.ResultsWith(Failed)) != 1 || len(report.Calls) > 50 {
		t.Errorf("%s after %d calls", report.Results[0].Outcome, len(report.Calls))
	}
}
