package main

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csispec"
	"github.com/csikit/csikit/csitest"
	"google.golang.org/grpc/codes"
)

//go:embed report.html.tmpl
var page string

var pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"seconds": func(d time.Duration) string {
		if d < time.Second {
			return fmt.Sprintf("%.1f ms", milliseconds(d))
		}
		return fmt.Sprintf("%.2f s", d.Seconds())
	},
	"upper": upper,
}).Parse(page))

// A htmlRule is a rule with its calls, in one lane for each volume.
type htmlRule struct {
	csitest.Result
	Lanes    []*htmlLane
	Height   int
	Duration time.Duration
	Omitted  int // calls that are not in a lane
}

type htmlLane struct {
	Volume string
	Y      int
	Calls  []htmlCall
	end    time.Time
}

type htmlCall struct {
	X, Width    float64 // per mille of the rule's time
	Color, Text string
}

const laneHeight = 18

// printHTML writes one page that needs no other file.
func printHTML(w io.Writer, r *csitest.Report) error {
	calls := map[string][]*csitest.Call{}
	names := map[string]string{} // the IDs of volumes by their names
	for _, c := range r.Calls {
		calls[c.Rule] = append(calls[c.Rule], c)
		if resp, ok := c.Response.(*csi.CreateVolumeResponse); ok {
			names[c.Volume] = resp.GetVolume().GetVolumeId()
		}
	}
	var rules []htmlRule
	for _, x := range r.Results {
		rules = append(rules, timeline(x, calls[x.Rule.ID], names))
	}
	slices.SortStableFunc(rules, func(a, b htmlRule) int { return rank(a) - rank(b) })
	return pageTemplate.Execute(w, map[string]any{
		"Report": r, "Rules": rules, "OK": r.OK(),
		"Passed": len(r.ResultsWith(csitest.Passed)), "Failed": len(r.ResultsWith(csitest.Failed)) + len(r.ResultsWith(csitest.Broken)),
		"NotRun": len(r.ResultsWith(csitest.NotRun)), "DoesNotApply": len(r.ResultsWith(csitest.DoesNotApply)),
	})
}

// rank puts failures first.
func rank(x htmlRule) int {
	return slices.Index([]csitest.Outcome{csitest.Broken, csitest.Failed, csitest.Passed, csitest.NotRun, csitest.DoesNotApply}, x.Outcome)
}

// timeline lays the calls out: calls of one volume that overlap get lanes of their
// own.
func timeline(x csitest.Result, calls []*csitest.Call, names map[string]string) htmlRule {
	h := htmlRule{Result: x}
	if len(calls) == 0 {
		return h
	}
	slices.SortStableFunc(calls, func(a, b *csitest.Call) int { return a.Begin.Compare(b.Begin) })
	// Some rules have hundreds of calls, and some calls megabytes. A page that a browser
	// opens at once has them where they matter.
	characters := 600
	if x.Outcome != csitest.Failed && x.Outcome != csitest.Broken {
		characters = 150
		if most := 25; len(calls) > most {
			h.Omitted, calls = len(calls)-most, calls[:most]
		}
	}
	begin, end := calls[0].Begin, calls[0].End()
	for _, c := range calls {
		if c.End().After(end) {
			end = c.End()
		}
	}
	h.Duration = max(end.Sub(begin), time.Microsecond)
	for _, c := range calls {
		volume := c.Volume
		if id := names[volume]; id != "" {
			volume = id
		}
		lane := h.lane(volume, c.Begin)
		lane.end = c.End()
		text := fmt.Sprintf("%s %s: %s, %.2f ms after %.2f ms\n%s", c.Method, c.Volume, c.Code(), milliseconds(c.Took),
			milliseconds(c.Begin.Sub(begin)), csispec.Redact(c.Request))
		if c.Code() != codes.OK {
			text += "\n" + c.Status.Message()
		}
		lane.Calls = append(lane.Calls, htmlCall{
			X: 1000 * float64(c.Begin.Sub(begin)) / float64(h.Duration), Width: max(1000*float64(c.Took)/float64(h.Duration), 1.5),
			Color: color(c), Text: clip(text, characters),
		})
	}
	for i, l := range h.Lanes {
		l.Y = i * laneHeight
	}
	h.Height = len(h.Lanes) * laneHeight
	return h
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + " …"
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// lane finds one of the volume that is free, or makes it behind those of the volume.
func (h *htmlRule) lane(volume string, begin time.Time) *htmlLane {
	at := len(h.Lanes)
	for i, l := range h.Lanes {
		if l.Volume != volume {
			continue
		}
		if !begin.Before(l.end) {
			return l
		}
		at = i + 1
	}
	l := &htmlLane{Volume: volume}
	h.Lanes = slices.Insert(h.Lanes, at, l)
	return l
}

// color is by what kind of call it was, and by how it ended.
func color(c *csitest.Call) string {
	switch {
	case c.Code() != codes.OK:
		return "error"
	case c.Cleanup:
		return "cleanup"
	case len(c.Method) > 4 && c.Method[:4] == "Node":
		return "node"
	}
	return "controller"
}
