package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csitest"
	"golang.org/x/net/html"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const hostile = `</title><script>alert("1")</script>\x1b & ]]>`

// hostileDriver answers some calls with what a page or a file must not take for its own.
func hostileDriver(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	switch req.(type) {
	case *csi.GetPluginInfoRequest:
		return &csi.GetPluginInfoResponse{Name: "ref.csikit.dev", VendorVersion: hostile}, nil
	case *csi.DeleteSnapshotRequest:
		return nil, status.Error(codes.Internal, hostile)
	}
	return handler(ctx, req)
}

// sample is a report with every kind of result, with hostile texts.
func sample(t *testing.T) *csitest.Report {
	t.Helper()
	endpoint, dir := serve(t, hostileDriver)
	report, err := csitest.Check(t.Context(), csitest.Target{Endpoint: endpoint}, csitest.Config{
		Dir: dir, Size: 64 << 20, Rules: []string{"controller.snapshot.", "restart.", "source.clone.", "response.", "status."},
	})
	if err != nil {
		t.Fatal(err)
	}
	report.Results[0].Outcome, report.Results[0].Reason, report.Results[0].Took = csitest.Broken, hostile, 3*time.Microsecond
	report.Interrupted = true
	for _, o := range []csitest.Outcome{csitest.Passed, csitest.Failed, csitest.NotRun, csitest.DoesNotApply, csitest.Broken} {
		if len(report.ResultsWith(o)) == 0 {
			t.Fatalf("no rule %s", o)
		}
	}
	if len(report.NotCleaned) == 0 {
		t.Fatal("everything was cleaned up")
	}
	return report
}

func written(t *testing.T, print func(io.Writer, *csitest.Report) error, r *csitest.Report) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := print(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The JSON has the fields of its types and no other, and says what the report says.
func TestJSON(t *testing.T) {
	r := sample(t)
	d := json.NewDecoder(bytes.NewReader(written(t, printJSON, r)))
	d.DisallowUnknownFields()
	var got jsonReport
	if err := d.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		t.Errorf("something behind the report: %v", err)
	}
	if got.OK || !got.Interrupted || got.VendorVersion != hostile || got.Calls != len(r.Calls) || !slices.Equal(got.NotCleaned, r.NotCleaned) || len(got.Rules) != len(r.Results) {
		t.Errorf("%+v", got)
	}
	for i, x := range r.Results {
		if j := got.Rules[i]; j.ID != x.Rule.ID || j.Outcome != string(x.Outcome) || j.Flag != flags[x.MissingFacility] || len(j.Failures) != len(x.Failures) {
			t.Errorf("%+v, want %+v", j, x)
		}
	}
	empty := written(t, printJSON, &csitest.Report{Driver: r.Driver})
	if bytes.Contains(empty, []byte("null")) {
		t.Errorf("a list is null in %s", empty)
	}
}

// An xmlRule is what a schema says of an element: its attributes, all of them required, and
// its children in their order.
type xmlRule struct {
	attributes map[string]*regexp.Regexp
	children   string // a regular expression of names, each with a space behind
}

var (
	anyText  = regexp.MustCompile(`(?s)^.*$`)
	someText = regexp.MustCompile(`(?s)^.+$`)
	number   = regexp.MustCompile(`^\d+$`)
	xsDec    = regexp.MustCompile(`^-?\d+(\.\d+)?$`)
	iso8601  = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d$`)
	problem  = xmlRule{attributes: map[string]*regexp.Regexp{"message": anyText, "type": someText}}
)

// junit is the format of the schema that goes with Ant's JUnit task.
var junit = map[string]xmlRule{
	"testsuite": {map[string]*regexp.Regexp{
		"name": someText, "tests": number, "failures": number, "errors": number, "skipped": number,
		"time": xsDec, "timestamp": iso8601, "hostname": someText,
	}, `^properties (testcase )*system-out system-err $`},
	"properties": {nil, `^$`},
	"testcase": {map[string]*regexp.Regexp{"classname": someText, "name": someText, "time": xsDec},
		`^((skipped|error|failure) )?$`},
	"skipped": problem, "error": problem, "failure": problem,
	"system-out": {}, "system-err": {},
}

// An element of XML, read without knowing what it is.
type element struct {
	XMLName    xml.Name
	Attributes []xml.Attr `xml:",any,attr"`
	Children   []element  `xml:",any"`
	Text       string     `xml:",chardata"`
}

func (e element) attribute(name string) string {
	for _, a := range e.Attributes {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func (e element) check(t *testing.T, count map[string]int) {
	rule, known := junit[e.XMLName.Local]
	if !known {
		t.Errorf("<%s> is no element of JUnit", e.XMLName.Local)
		return
	}
	count[e.XMLName.Local]++
	for _, a := range e.Attributes {
		if rule.attributes[a.Name.Local] == nil {
			t.Errorf("<%s> has %s", e.XMLName.Local, a.Name.Local)
		}
	}
	for name, form := range rule.attributes {
		has := slices.ContainsFunc(e.Attributes, func(a xml.Attr) bool { return a.Name.Local == name })
		if !has || !form.MatchString(e.attribute(name)) {
			t.Errorf("<%s %s=%q>, want %s", e.XMLName.Local, name, e.attribute(name), form)
		}
	}
	var names strings.Builder
	for _, c := range e.Children {
		names.WriteString(c.XMLName.Local + " ")
		c.check(t, count)
	}
	if form := regexp.MustCompile(rule.children); !form.MatchString(names.String()) {
		t.Errorf("<%s> has %q in it, want %s", e.XMLName.Local, names.String(), form)
	}
}

func TestJUnit(t *testing.T) {
	r := sample(t)
	var suite element
	if err := xml.Unmarshal(written(t, printJUnit, r), &suite); err != nil {
		t.Fatal(err)
	}
	if suite.XMLName.Local != "testsuite" {
		t.Errorf("the root is <%s>", suite.XMLName.Local)
	}
	count := map[string]int{}
	suite.check(t, count)
	for attribute, name := range map[string]string{"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"} {
		if suite.attribute(attribute) != strconv.Itoa(count[name]) || count[name] == 0 {
			t.Errorf("%s is %s, and there are %d <%s>", attribute, suite.attribute(attribute), count[name], name)
		}
	}
	if want := len(r.Results) + 2; count["testcase"] != want { // what was left, and that it was interrupted
		t.Errorf("%d cases, want %d", count["testcase"], want)
	}
}

// The page needs no other file, has every call of every rule in the lane of its volume, and what
// the driver said as text.
func TestPage(t *testing.T) {
	r := sample(t)
	root, err := html.Parse(bytes.NewReader(written(t, printHTML, r)))
	if err != nil {
		t.Fatal(err)
	}
	rects, quotes, lanes := 0, 0, map[string]bool{}
	for n := range root.Descendants() {
		switch {
		case n.Type == html.TextNode && n.Parent.Data == "style" && (strings.Contains(n.Data, "@import") || strings.Contains(n.Data, "url(")):
			t.Errorf("the style refers to something else: %s", n.Data)
		case n.Type == html.TextNode && strings.Contains(n.Data, "<script>alert("):
			quotes++
		case n.Type != html.ElementNode:
			continue
		case slices.Contains([]string{"script", "link", "img", "iframe", "object", "embed", "base", "form", "image", "use", "a"}, n.Data):
			t.Errorf("there is a <%s>", n.Data)
		case n.Data == "rect":
			rects++
		case n.Data == "div" && n.Parent.Data == "div" && attributeOf(n.Parent, "class") == "names":
			lanes[attributeOf(n, "title")] = true
		}
		for _, a := range n.Attr {
			if slices.Contains([]string{"src", "href", "action", "srcset", "data", "background", "poster"}, a.Key) || strings.HasPrefix(a.Key, "on") {
				t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
			}
		}
	}
	failed := map[string]bool{}
	for _, x := range append(r.ResultsWith(csitest.Failed), r.ResultsWith(csitest.Broken)...) {
		failed[x.Rule.ID] = true
	}
	want, volumes, ofRule := 0, map[string]bool{}, map[string]int{}
	for _, c := range r.Calls {
		if ofRule[c.Rule]++; c.Rule == "" || !failed[c.Rule] && ofRule[c.Rule] > 25 {
			continue
		}
		want++
		if resp, ok := c.Response.(*csi.CreateVolumeResponse); ok {
			volumes[resp.GetVolume().GetVolumeId()] = true
		}
	}
	if rects != want || quotes == 0 {
		t.Errorf("%d calls on the page, want %d; %d times what the driver said", rects, want, quotes)
	}
	for id := range volumes {
		if !lanes[id] {
			t.Errorf("no lane for %s", id)
		}
	}
}

func attributeOf(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

// TAP has one line for each rule, numbered, and one for what is left behind; nothing that
// comes from the driver begins a line of its own.
func TestTAP(t *testing.T) {
	r := sample(t)
	lines := strings.Split(strings.TrimSuffix(string(written(t, printTAP, r)), "\n"), "\n")
	if lines[0] != "TAP version 14" || lines[1] != "1.."+strconv.Itoa(len(r.Results)+1) {
		t.Errorf("it begins with %q", lines[:2])
	}
	n, failed := 0, 0
	for _, line := range lines[2:] {
		if strings.HasPrefix(line, "#") {
			continue
		}
		n++
		if match := tapLine.FindStringSubmatch(line); match == nil || match[2] != strconv.Itoa(n) {
			t.Errorf("line %d: %q", n, line)
		} else if match[1] == "not ok" && !strings.Contains(line, "# TODO") {
			failed++
		}
	}
	want := len(r.ResultsWith(csitest.Broken)) + 1 // what is left behind
	for _, x := range r.ResultsWith(csitest.Failed) {
		if counts(r, x) {
			want++
		}
	}
	if n != len(r.Results)+1 || failed != want {
		t.Errorf("%d lines, %d failures; want %d and %d", n, failed, len(r.Results)+1, want)
	}
}

var tapLine = regexp.MustCompile(`^(ok|not ok) (\d+) - \S`)

// An annotation is one line, whatever is in its text.
func TestGitHub(t *testing.T) {
	r := sample(t)
	n := 0
	for line := range strings.Lines(string(written(t, printGitHub, r))) {
		if strings.HasPrefix(line, "::") {
			n++
			if !annotation.MatchString(line) {
				t.Errorf("%q", line)
			}
		}
	}
	if want := len(r.ResultsWith(csitest.Failed)) + len(r.ResultsWith(csitest.Broken)) + len(r.NotCleaned); n != want {
		t.Errorf("%d annotations, want %d", n, want)
	}
}

var annotation = regexp.MustCompile(`^::(error|warning) title=csicheck[^,:\n]*::[^\n]+\n$`)

// Requests of megabytes do not make the page as large.
func TestHTMLIsSmall(t *testing.T) {
	begin := time.Now()
	request := &csi.CreateVolumeRequest{Name: strings.Repeat("é", 1<<20)}
	page := written(t, printHTML, &csitest.Report{
		Driver:  &csi.GetPluginInfoResponse{},
		Results: []csitest.Result{{Rule: csitest.Rules("identity.")[0], Outcome: csitest.Passed}},
		Calls:   []*csitest.Call{{Rule: csitest.Rules("identity.")[0].ID, Method: "CreateVolume", Request: request, Status: status.New(codes.OK, ""), Begin: begin}},
	})
	if len(page) > 16<<10 || !bytes.Contains(page, []byte("éé")) {
		t.Errorf("%d bytes", len(page))
	}
}
