package csitest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// maxKillsPerCall is the number of kills after which a call is not killed again, and has to
// end: a call that takes longer than the time between two kills is no fault.
const maxKillsPerCall = 12

// again calls until the outcome is known, and demands OK or one of the other codes.
func again[Req, Resp any](w *worker, rpc func(context.Context, *Req, ...grpc.CallOption) (*Resp, error), req *Req, also ...codes.Code) answer[Resp] {
	kills, calm := w.kills.Load(), time.Time{}
	defer func() {
		if !calm.IsZero() {
			w.calm.RUnlock()
		}
	}()
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		a := once(w, rpc, req)
		switch {
		case a.Err == nil && len(a.Invalid) > 0:
			a.wrong("a response that keeps the specification: %v", a.Invalid)
		case a.Err == nil || a.is(also...):
			return a
		case !uncertain(a.Err):
			w.c.breach(a.Call, wantText(append([]codes.Code{codes.OK}, also...)), a.responseText()+w.c.history(a.Volume))
			panic(stop{})
		case w.c.ctx.Err() != nil:
			a.wrong("an answer within the time")
		case !calm.IsZero() && time.Since(calm) > callTimeout:
			w.c.breach(a.Call, fmt.Sprintf("an end of the call, which was killed %d times and then repeated for %s without a kill", maxKillsPerCall, callTimeout), a.responseText()+w.c.history(a.Volume))
			panic(stop{})
		}
		if w.failed.Load() {
			panic(stop{}) // of another one
		}
		w.interrupted.Add(1)
		if calm.IsZero() && w.kills.Load()-kills >= maxKillsPerCall {
			w.calm.RLock()
			calm = time.Now()
		}
		select {
		case <-w.c.ctx.Done():
		case <-time.After(wait):
		}
	}
}

// once calls, and if the step is to have a twin, twice at the same time, as after a
// restart of the CO. Two that succeed must return the same object.
func once[Req, Resp any](w *worker, rpc func(context.Context, *Req, ...grpc.CallOption) (*Resp, error), req *Req) answer[Resp] {
	if !w.twin {
		return send(w.c, rpc, req)
	}
	w.twin = false
	other := make(chan answer[Resp], 1)
	go func() { other <- send(w.c, rpc, req) }()
	a := send(w.c, rpc, req)
	b := <-other
	if a.Err == nil && b.Err == nil {
		if one, two := made(a.Resp), made(b.Resp); one != two {
			w.c.breach(b.Call, fmt.Sprintf("%s, as a concurrent call got", one), two+w.c.history(b.Volume))
			panic(stop{})
		}
	}
	if a.Err != nil && (b.Err == nil || uncertain(a.Err)) {
		return b
	}
	return a
}

// made is the ID of what a call has made.
func made(resp any) string {
	switch r := resp.(type) {
	case *csi.CreateVolumeResponse:
		return r.GetVolume().GetVolumeId()
	case *csi.CreateSnapshotResponse:
		return r.GetSnapshot().GetSnapshotId()
	case *csi.CreateVolumeGroupSnapshotResponse:
		return r.GetGroupSnapshot().GetGroupSnapshotId()
	}
	return ""
}

// history is what the last calls about an ID, or a name, came to.
func (c *ruleRun) history(id string) string {
	const most = 16
	var lines []string
	for _, call := range c.run.record.all() {
		if call.Volume == id || call.Response != nil && made(call.Response) == id || id != "" && mentions(call.Request, id) {
			lines = append(lines, fmt.Sprintf("\n  %8.3f s, %6.3f s: %s %s: %s", call.Begin.Sub(c.run.report.Begin).Seconds(), call.Took.Seconds(), call.Method, call.Volume, call.Code()))
		}
	}
	return "\nthe last calls about it, and how long they took:" + strings.Join(lines[max(0, len(lines)-most):], "")
}

func mentions(m proto.Message, id string) bool {
	switch r := m.(type) {
	case *csi.CreateVolumeRequest:
		return r.GetVolumeContentSource().GetVolume().GetVolumeId() == id || r.GetVolumeContentSource().GetSnapshot().GetSnapshotId() == id
	case *csi.CreateVolumeGroupSnapshotRequest:
		for _, v := range r.GetSourceVolumeIds() {
			if v == id {
				return true
			}
		}
	}
	return false
}
