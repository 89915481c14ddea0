package csitest

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest/gate"
	"github.com/csikit/csikit/internal/refdriver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// tortureOf runs the reference driver with a defect.
func tortureOf(t *testing.T, d defect, kills int) (*Report, TortureProgress) {
	t.Helper()
	if d.kernel {
		gate.UserNS(t)
	}
	target, cfg := reference(t, d)
	cfg.Size = 2 << 20
	var last TortureProgress
	report, err := Torture(t.Context(), target, cfg, TortureConfig{Kills: kills, Seed: 1, Workers: 4, Progress: func(p TortureProgress) { last = p }})
	if err != nil {
		t.Fatal(err)
	}
	return report, last
}

// The reference driver survives.
func TestTortureReference(t *testing.T) {
	for name, kernel := range map[string]bool{"answers": false, "mounts": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report, last := tortureOf(t, defect{kernel: kernel}, 25)
			if len(report.ResultsWith(Passed)) != 1 || len(report.NotCleaned) > 0 {
				t.Fatalf("%v %v %s", report.Results[0].Failures, report.NotCleaned, report.Results[0].Reason)
			}
			if last.Kills < 25 || last.VolumesCompleted == 0 || last.ListComparisons == 0 || kernel && last.Checks == 0 {
				t.Errorf("%+v", last)
			}
			done := map[string]bool{}
			for _, call := range report.Calls {
				done[call.Method] = done[call.Method] || call.Code() == codes.OK
			}
			for _, r := range rpcs {
				if !done[r.method] {
					t.Errorf("%s was never called with success", r.method)
				}
			}
		})
	}
}

var tortureDefects = []struct {
	name  string
	words string // of the failure, if it shows in only one way
	kills int    // after which it is found; 0: 100
	defect
}{
	{name: "forgets volumes", defect: defect{forgets: (*refdriver.State).ForgetVolumes}},
	{name: "forgets names", defect: defect{forgets: (*refdriver.State).ForgetNames}},
	{name: "forgets attachments", defect: defect{forgets: (*refdriver.State).ForgetAttachments}},
	{name: "forgets what is staged", defect: defect{forgets: (*refdriver.State).ForgetNode}},
	{name: "forgets snapshots", defect: defect{forgets: (*refdriver.State).ForgetSnapshots}},
	{name: "forgets expansions", defect: defect{forgets: (*refdriver.State).ForgetSizes}},
	{name: "makes a second volume", defect: defect{unary: before(func(r *csi.CreateVolumeRequest) {
		if strings.HasSuffix(r.GetName(), "7") {
			r.Name += time.Now().String()
		}
	})}},
	{name: "keeps volumes that it says it has deleted", defect: defect{unary: instead(func(r *csi.DeleteVolumeRequest) (proto.Message, error) {
		if strings.HasSuffix(r.GetVolumeId(), "7") {
			return &csi.DeleteVolumeResponse{}, nil
		}
		return nil, nil
	})}},
	{name: "keeps snapshots that it says it has deleted", defect: defect{unary: instead(func(r *csi.DeleteSnapshotRequest) (proto.Message, error) {
		if strings.HasSuffix(r.GetSnapshotId(), "7") {
			return &csi.DeleteSnapshotResponse{}, nil
		}
		return nil, nil
	})}},
	{name: "lists only the first page", defect: defect{unary: after(func(r *csi.ListVolumesResponse) { r.NextToken = "" })}},
	{name: "lists a volume twice", defect: defect{unary: after(func(r *csi.ListVolumesResponse) {
		if n := len(r.GetEntries()); n > 0 {
			r.Entries = append(r.Entries, r.GetEntries()[n-1])
		}
	})}},
	{name: "refuses a repeat", defect: defect{unary: instead(func(r *csi.NodeUnpublishVolumeRequest) (proto.Message, error) {
		if _, err := os.Lstat(r.GetTargetPath()); err != nil {
			return nil, status.Error(codes.NotFound, "it was unpublished")
		}
		return nil, nil
	})}},
	{name: "lets another node have it", defect: defect{unary: before(func(r *csi.ControllerPublishVolumeRequest) {
		r.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	})}},
	{name: "loses the last write", words: "other data", defect: defect{kernel: true, unary: before(func(r *csi.NodeUnstageVolumeRequest) {
		if newest := newestIn(r.GetStagingTargetPath()); newest != "" {
			_ = os.Remove(newest) // what is missed is found
		}
	})}},
	{name: "damages a snapshot", words: "other data", defect: defect{kernel: true, copied: func(_, to string) {
		if newest := newestIn(to); newest != "" && strings.Contains(to, "snapshot") {
			_ = os.WriteFile(newest, make([]byte, slotSize), 0o600)
		}
	}}},
	{name: "has a snapshot of two points in time", words: "no single point at which all were", defect: defect{kernel: true, copied: func(from, to string) {
		// What was written second since the snapshot goes into it, and what was written first
		// does not.
		first := newestIn(from)
		for range 100 {
			if now := newestIn(from); now != first && !strings.HasSuffix(now, filepath.Base(first)) {
				if data, err := os.ReadFile(now); err == nil && len(data) == slotSize {
					if first == "" || sameData(first, filepath.Join(to, filepath.Base(first))) {
						first = now // the first one since
						continue
					}
					_ = os.WriteFile(filepath.Join(to, filepath.Base(now)), data, 0o600)
					return
				}
			}
			time.Sleep(200 * time.Microsecond)
		}
	}}},
	{name: "leaves a mount", words: "no mount", kills: 10, defect: defect{kernel: true, unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		if r, ok := req.(*csi.NodeUnstageVolumeRequest); ok && err == nil && strings.HasSuffix(r.GetVolumeId(), "7") {
			err = refdriver.Bind(r.GetStagingTargetPath(), r.GetStagingTargetPath(), false)
		}
		return resp, err
	}}},
}

// newestIn is the file in a directory that was written last.
func newestIn(dir string) (path string) {
	var at time.Time
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		if info, err := f.Info(); err == nil && info.ModTime().After(at) {
			path, at = filepath.Join(dir, f.Name()), info.ModTime()
		}
	}
	return path
}

func sameData(a, b string) bool {
	one, err1 := os.ReadFile(a)
	two, err2 := os.ReadFile(b)
	return err1 == nil && err2 == nil && bytes.Equal(one, two)
}

// Each defect is found.
func TestTortureDefects(t *testing.T) {
	for _, d := range tortureDefects {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			report, last := tortureOf(t, d.defect, cmp.Or(d.kills, 100))
			failed := report.ResultsWith(Failed)
			if len(failed) != 1 {
				t.Fatalf("not found: %+v, %+v", last, report.Results)
			}
			text := failed[0].Failures[0].String()
			if !strings.Contains(text, d.words) {
				t.Errorf("%q is missing in %s", d.words, text)
			}
		})
	}
}

// What would do nothing is no pass.
func TestTortureOfNothing(t *testing.T) {
	target, cfg := reference(t, defect{})
	if report, err := Torture(t.Context(), target, cfg, TortureConfig{}); err == nil {
		t.Errorf("neither duration nor kills: %+v", report.Results)
	}
	if c, err := (TortureConfig{Kills: 1}).complete(); err != nil || c.Workers != 4 || c.Duration <= 0 {
		t.Errorf("%+v, %v", c, err)
	}
}
