package filepool_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/examples/blockdriver/filepool"
	"github.com/csikit/csikit/topology"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// TestRules checks the driver with everything that it can, in one process and in two,
// which are killed and started: two places, and pools that share blocks.
func TestRules(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs")
	for _, split := range []bool{false, true} {
		t.Run(fmt.Sprintf("split=%t", split), func(t *testing.T) {
			p := newTwoPools(t, "xfs")
			target := p.target(t, split)
			if !split {
				target.Inventory = p.inventory
			}
			report, err := csitest.Check(t.Context(), target, csitest.Config{
				Dir: p.dir, Size: 64 << 20, CheckMounts: true, Secrets: map[string]string{"passphrase": "of no volume here"},
				MutableParameters: map[string]string{filepool.ParamReadAhead: "256", filepool.ParamDirectIO: "true"},
			})
			must(t, err)
			for _, x := range report.Results { // a SHOULD that fails is a failure here
				if x.Outcome == csitest.Failed || x.Outcome == csitest.Broken {
					t.Errorf("%s: %s\n%s%v", x.Rule.ID, x.Rule.Title, x.Reason, x.Failures)
				}
			}
			for _, left := range report.NotCleaned {
				t.Errorf("left behind: %s", left)
			}
			for _, x := range report.ResultsWith(csitest.NotRun) {
				if split && x.MissingFacility != csitest.FacilityInventory || !split && x.MissingFacility != csitest.FacilityControllerEndpoint {
					t.Errorf("%s was not run: %s", x.Rule.ID, x.Reason)
				}
			}
			for _, x := range report.ResultsWith(csitest.DoesNotApply) { // a refusal would be legal, and is not what is offered
				if strings.Contains(x.Rule.ID, ".point-in-time.") && !(split && x.Rule.ID == "group.point-in-time.order") {
					t.Errorf("%s: %s", x.Rule.ID, x.Reason)
				}
			}
			t.Logf("%d rules passed in %v", len(report.ResultsWith(csitest.Passed)), report.Took)
		})
	}
}

// What csitest lets a driver do later, when the volume is published again, is done while
// it is in use: each kind of volume grows under its pod.
func TestRulesOfGrowthOnline(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs", "mkfs.xfs")
	for _, kind := range []string{"block", "xfs", "ext4"} {
		t.Run(kind, func(t *testing.T) {
			rule, cfg := "node.expand.grows", csitest.Config{Dir: t.TempDir(), Size: 320 << 20, CheckMounts: true, FSType: kind} // no xfs is smaller
			switch kind {
			case "block":
				rule, cfg.FSType = "node.expand.grows-block", ""
			case "ext4":
				gate.Capability(t, unix.CAP_SYS_RESOURCE)
			}
			cfg.Rules = []string{rule}
			report, err := csitest.Check(t.Context(), csitest.Target{Endpoint: startInProcess(t, cfg.Dir)}, cfg)
			must(t, err)
			if passed := report.ResultsWith(csitest.Passed); len(passed) != 1 || passed[0].Rule.ID != rule {
				t.Errorf("%+v", report.Results)
			}
			grown := 0
			for _, call := range report.Calls {
				if call.Method == "NodeExpandVolume" {
					grown++
					must(t, call.Status.Err())
				}
			}
			if grown != 2 {
				t.Errorf("NodeExpandVolume was called %d times", grown)
			}
		})
	}
}

// TestRulesTorture kills the driver at random moments under a mix of all RPCs, in one
// process and in two, on pools that share blocks and on pools that do not, and checks
// what is left of the pools: 40 times each, or 500 with CSIKIT_TORTURE=1.
func TestRulesTorture(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs", "mkfs.xfs")
	kills, seed := 40, uint64(1)
	if os.Getenv("CSIKIT_TORTURE") == "1" {
		kills, seed = 500, uint64(time.Now().UnixNano())
	}
	for _, x := range []struct {
		poolType string // "" is that of the temporary directory
		split    bool
		fsType   string // of the volumes
		size     int64
	}{{"xfs", false, "", 32 << 20}, {"", true, "", 32 << 20}, {"xfs", true, "xfs", 300 << 20}, {"", false, "", 32 << 20}} {
		if x.fsType == "xfs" && kills < 500 {
			continue // mkfs.xfs and 300 MiB take their time
		}
		t.Run(fmt.Sprintf("%s,split=%t", cmp.Or(x.poolType, "plain"), x.split), func(t *testing.T) {
			t.Parallel()
			p := newTwoPools(t, x.poolType)
			target := p.target(t, x.split)
			report, err := csitest.Torture(t.Context(), target, csitest.Config{
				Dir: p.dir, Size: x.size, FSType: x.fsType, CheckMounts: true, MutableParameters: map[string]string{filepool.ParamReadAhead: "256", filepool.ParamDirectIO: "true"},
			}, csitest.TortureConfig{Kills: kills, Seed: seed, Workers: 4, Progress: func(now csitest.TortureProgress) {
				if now.Kills%50 == 0 || now.Kills == kills {
					t.Logf("%+v", now)
				}
			}})
			must(t, err)
			for _, x := range report.Results {
				if x.Outcome != csitest.Passed || len(report.NotCleaned) > 0 {
					t.Errorf("seed %d: %s %s %v %v", seed, x.Outcome, x.Reason, x.Failures, report.NotCleaned)
				}
			}
			p.checkEmpty(t)
		})
	}
}

const rack = "topology.block.csikit.dev/rack"

// twoPools are in different places.
type twoPools struct {
	dir  string
	args []string
}

func newTwoPools(t *testing.T, poolType string) *twoPools {
	// Not t.TempDir, which has the test's name in it: a comma begins a pool's segments.
	dir, err := os.MkdirTemp("", "pools")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &twoPools{dir: dir}
	must(t, os.Mkdir(filepath.Join(dir, "s"), 0o700)) // only for the sockets
	for _, r := range []string{"r1", "r2"} {
		pool := filepath.Join(dir, r)
		if poolType != "" {
			mountPool(t, pool, poolType)
		} else {
			makePool(t, pool)
		}
		secondNode(t, pool, rack)
		p.args = append(p.args, "-pool", r+"="+pool+","+rack+"="+r)
	}
	return p
}

// target is the driver in one process, or in two.
func (p *twoPools) target(t *testing.T, split bool) csitest.Target {
	start := func(socket string, more ...string) (endpoint string, command func() *exec.Cmd) {
		endpoint = "unix://" + filepath.Join(p.dir, "s", socket)
		args := slices.Concat([]string{"-endpoint", endpoint}, p.args, more)
		return endpoint, func() *exec.Cmd { return gate.RoleCommand(context.WithoutCancel(t.Context()), "blockdriver", args...) }
	}
	target := csitest.Target{SecondNode: otherNode, SecondTopology: map[string]string{rack: "r2"}}
	node := []string{"-node-id", "node", "-max-volumes", "12", "-topology", rack + "=r1"}
	if split {
		target.ControllerEndpoint, target.StartController = start("ctl.sock", "-mode", "controller")
		node = append(node, "-mode", "node")
	}
	target.Endpoint, target.Start = start("csi.sock", node...)
	return target
}

// inventory lists what is in the pools.
func (p *twoPools) inventory(context.Context) (files []string, err error) {
	for _, in := range []string{"volumes/*", "snapshots/*", "groups/*"} {
		found, err := filepath.Glob(filepath.Join(p.dir, "r?", in))
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	return files, nil
}

// checkEmpty: nothing is left in the pools, and fsck finds no problem.
func (p *twoPools) checkEmpty(t *testing.T) {
	if t.Failed() {
		return
	}
	var out strings.Builder
	if err := run(t.Context(), append([]string{"fsck"}, p.args...), os.Getenv, &out, io.Discard); err != nil {
		t.Errorf("fsck: %v\n%s", err, out.String())
	}
	left, err := p.inventory(t.Context())
	must(t, err)
	for _, files := range []string{"nodes/*" + filepool.ExtTemp, filepool.MarkerName + ".*"} { // nodes stay known
		more, err := filepath.Glob(filepath.Join(p.dir, "r?", files))
		must(t, err)
		left = append(left, slices.DeleteFunc(more, func(file string) bool { return filepath.Base(file) == filepool.SpareName })...)
	}
	if len(left) > 0 {
		t.Errorf("left in the pools: %v", left)
	}
}

const otherNode = "other"

// secondNode makes a second node, in the first place, known to the pool.
func secondNode(t *testing.T, pool, rack string) {
	filepool.RegisterNode(t, pool, otherNode, topology.Segments{rack: "r1"})
}

// Rules that need a real block device are broken here, each by a driver in front.
func TestRulesOfBlockDevices(t *testing.T) {
	gate.Root(t)
	gate.Tools(t, "mke2fs", "blkid", "e2fsck", "resize2fs")
	published := func(do func(target string)) grpc.UnaryServerInterceptor {
		return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if r, ok := req.(*csi.NodePublishVolumeRequest); ok && err == nil {
				do(r.GetTargetPath())
			}
			return resp, err
		}
	}
	for rule, unary := range map[string]grpc.UnaryServerInterceptor{
		// A plain file at the target.
		"node.publish.block-device": published(func(target string) { must(t, unix.Unmount(target, 0)) }),
		// The device is wiped.
		"node.publish.block-data": published(func(target string) { must(t, os.WriteFile(target, make([]byte, 1<<20), 0)) }),
		// readonly is dropped.
		"node.publish.block-readonly": func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if r, ok := req.(*csi.NodePublishVolumeRequest); ok {
				r.Readonly = false
			}
			return handler(ctx, req)
		},
		// NodeExpandVolume does nothing.
		"node.expand.grows-block": func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if _, ok := req.(*csi.NodeExpandVolumeRequest); ok {
				return &csi.NodeExpandVolumeResponse{}, nil
			}
			return handler(ctx, req)
		},
	} {
		t.Run(rule, func(t *testing.T) {
			dir := t.TempDir()
			endpoint := inFront(t, dir, startInProcess(t, dir), unary)
			report, err := csitest.Check(t.Context(), csitest.Target{Endpoint: endpoint}, csitest.Config{Rules: []string{rule}, Dir: dir, Size: 16 << 20, CheckMounts: true})
			must(t, err)
			if failed := report.ResultsWith(csitest.Failed); len(failed) != 1 || failed[0].Rule.ID != rule {
				t.Errorf("failed: %v, want %s", failed, rule)
			}
		})
	}
}

// inFront serves the driver again, with an interceptor around every call.
func inFront(t *testing.T, dir, driver string, around grpc.UnaryServerInterceptor) (endpoint string) {
	cc, err := grpc.NewClient(driver, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	must(t, err)
	forward := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("csi.v1." + filepath.Base(info.FullMethod) + "Response"))
		if err != nil {
			return nil, err
		}
		resp := kind.New().Interface()
		return resp, cc.Invoke(ctx, info.FullMethod, req, resp)
	}
	s := grpc.NewServer(grpc.ChainUnaryInterceptor(around, forward))
	csi.RegisterIdentityServer(s, csi.UnimplementedIdentityServer{})
	csi.RegisterControllerServer(s, csi.UnimplementedControllerServer{})
	csi.RegisterNodeServer(s, csi.UnimplementedNodeServer{})
	lis, err := net.Listen("unix", filepath.Join(dir, "front.sock"))
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- s.Serve(lis) }()
	t.Cleanup(func() {
		s.Stop()
		must(t, <-done)
		must(t, cc.Close())
	})
	return "unix://" + lis.Addr().String()
}
