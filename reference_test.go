package csikit

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// isCurrent compares a page of docs/reference with what it is generated from, or with -update
// writes it.
func isCurrent(t *testing.T, page, text string) {
	t.Helper()
	if *update {
		writeFile(t, page, text, 0o644)
	}
	if have := readPage(t, page); have != text {
		t.Errorf("%s is outdated: go test -run '^%s$' -update .", page, t.Name())
	}
}

// The flags, from the programs themselves.
func TestReferenceFlags(t *testing.T) {
	var page strings.Builder
	page.WriteString("# Flags\n\nWhat the programs print with `-h`; TestReferenceFlags writes this page.\n")
	bin := t.TempDir()
	for _, p := range []struct{ name, module, dir string }{
		{"blockdriver", "examples/blockdriver", "."}, {"nfsdriver", "examples/nfsdriver", "."}, {"csicheck", ".", "./cmd/csicheck"},
	} {
		program := filepath.Join(bin, p.name)
		goTool(t, p.module, "build", "-o", program, p.dir)
		out, err := exec.Command(program, "-h").Output()
		if err != nil {
			t.Fatalf("%s -h: %v", p.name, err)
		}
		fmt.Fprintf(&page, "\n## %s\n\n```\n%s\n```\n", p.name, strings.TrimSpace(strings.ReplaceAll(string(out), "\t", "    ")))
	}
	isCurrent(t, "docs/reference/flags.md", page.String())
}

type instrument struct{ pkg, name, kind, unit, description string }

var instrumentKinds = regexp.MustCompile(`^(?:Int64|Float64)(?:Observable)?(Counter|UpDownCounter|Histogram|Gauge)$`)

// instruments returns those that the packages of the root module create.
func instruments(t *testing.T) (all []instrument) {
	t.Helper()
	files, err := filepath.Glob("*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			kind := instrumentKinds.FindStringSubmatch(called(call))
			text := literal(call.Args[0])
			if kind == nil || text == "" {
				return true
			}
			x := instrument{pkg: filepath.Dir(name), name: text, kind: kind[1]}
			for _, arg := range call.Args[1:] {
				if option, ok := arg.(*ast.CallExpr); ok && len(option.Args) == 1 {
					switch called(option) {
					case "WithUnit":
						x.unit = literal(option.Args[0])
					case "WithDescription":
						x.description = literal(option.Args[0])
					}
				}
			}
			if x.unit == "" || x.description == "" {
				t.Errorf("%s: %s has no unit or no description", name, x.name)
			}
			all = append(all, x)
			return true
		})
	}
	slices.SortFunc(all, func(a, b instrument) int { return strings.Compare(a.name, b.name) })
	return all
}

func called(call *ast.CallExpr) string {
	if s, ok := call.Fun.(*ast.SelectorExpr); ok {
		return s.Sel.Name
	}
	return ""
}

func literal(e ast.Expr) string {
	if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
		s, err := strconv.Unquote(l.Value)
		if err == nil {
			return s
		}
	}
	return ""
}

// prometheus is the name that OpenTelemetry's exporter gives the instrument:
// https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/.
func (x instrument) prometheus() string {
	name := strings.ReplaceAll(x.name, ".", "_")
	switch x.unit {
	case "s":
		name += "_seconds"
	case "1":
		if x.kind == "Gauge" {
			name += "_ratio"
		}
	}
	if x.kind == "Counter" {
		name += "_total"
	}
	return name
}

// The metrics, from the calls that create them.
func TestReferenceMetrics(t *testing.T) {
	var page bytes.Buffer
	page.WriteString(`# Metrics

Of the packages that get a MeterProvider; TestReferenceMetrics writes this page. The second name is that of
OpenTelemetry's Prometheus exporter. [Alerts and a dashboard](../monitoring/README.md).

| metric | in Prometheus | kind | unit | meaning |
|---|---|---|---|---|
`)
	for _, x := range instruments(t) {
		fmt.Fprintf(&page, "| `%s` | `%s` | %s | %s | %s |\n", x.name, x.prometheus(), strings.ToLower(x.kind), x.unit, x.description)
	}
	isCurrent(t, "docs/reference/metrics.md", page.String())
}

var promName = regexp.MustCompile(`csikit_\w+`)

// Alerts and dashboard name metrics that exist.
func TestMonitoring(t *testing.T) {
	exist := map[string]bool{}
	for _, x := range instruments(t) {
		exist[x.prometheus()] = true
		if x.kind == "Histogram" {
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				exist[x.prometheus()+suffix] = true
			}
		}
	}
	for _, file := range []string{"alerts.yaml", "alerts_test.yaml", "dashboard.json"} {
		for _, name := range promName.FindAllString(readPage(t, filepath.Join("docs/monitoring", file)), -1) {
			if !exist[name] {
				t.Errorf("%s names %s, which nothing emits", file, name)
			}
		}
	}
}
