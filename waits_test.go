package csikit

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// shortWait is what a busy machine takes now and then for anything.
const shortWait = 10 * time.Second

// What waits for a time all the same, by file and function, with the reason.
var waits = map[string]string{
	"blocking/example_test.go ExamplePendingError":                                 "what it calls does not return",
	"blocking/group_test.go TestRekey":                                             "what it calls does not return",
	"nodeops/point_linux_test.go TestTargetBelowAHungMount":                        "what it calls does not return",
	"csitest/defects_hostile_test.go tooLate":                                      "kubelet's deadline of one second is to pass",
	"csitest/defects_hostile_test.go hostileDefects":                               "a driver that is slow",
	"csitest/defects_mounts_test.go mountDefects":                                  "a driver that is slow",
	"csitest/defects_node_test.go restartDefects":                                  "a driver that is slow",
	"csitest/gate/main_linux_test.go fixtures":                                     "a signal ends it",
	"csitest/legal_test.go legalDrivers":                                           "a driver that is slow",
	"csitest/legal_test.go oneAtATime":                                             "a driver that is slow",
	"csitest/nfsd/nfsd_linux_test.go TestServer":                                   "a call blocks, which no event announces",
	"csitest/process_linux_test.go init":                                           "a signal ends it",
	"csitest/torture_test.go tortureDefects":                                       "a driver that is slow",
	"examples/blockdriver/filepool/pools_test.go TestPoolThatDoesNotAnswer":        "what it calls does not return",
	"examples/blockdriver/filepool/pools_test.go TestNodeOfAPoolThatDoesNotAnswer": "what it calls does not return",
	"hack/mutate/run_linux_test.go TestCage":                                       "what it calls does not return",
	"internal/process/process_linux_test.go TestMain":                              "a signal ends it",
	"nodeops/errors_test.go TestKindOf":                                            "what it calls does not return",
	"nodeops/failures_root_linux_test.go TestStageOutlivesItsCaller":               "what it calls does not return",
	"nodeops/nfs_linux_test.go soon":                                               "what it calls does not return",
	"nodeops/root_linux_test.go TestStatsOfAHungVolume":                            "what it calls does not return",
	"nodeops/stale_linux_test.go TestOrphanedPublicationInFlight":                  "what it calls does not return",
	"registration/kubelet_linux_test.go register":                                  "kubelet's own, and it tries again",
	"registration/socket_linux_test.go TestKubeletCallsImmediately":                "the test tries again",
	"volumelock/interceptor_test.go TestInterceptorWait":                           "it runs in a bubble of synctest",
}

// A test waits for what happens, and not for a time in which it happens on an idle machine:
// time.Sleep is for a loop that polls and for synctest, whose time is no machine's, and a
// deadline of less than ten seconds for what has to miss it.
func TestWaits(t *testing.T) {
	used := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin"):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			return err
		}
		for _, w := range fileWaits(file) {
			at := filepath.ToSlash(path) + " " + w.where
			if used[at] = true; waits[at] == "" {
				t.Errorf("%s: %s in %q waits for a time: wait for the event, or say in waits_test.go why not", fset.Position(w.pos), w.what, at)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for at := range waits {
		if !used[at] {
			t.Errorf("%s no longer waits for a time: remove it from waits_test.go", at)
		}
	}
}

func TestWaitsAreFound(t *testing.T) {
	const text = `package p
var v = func() { time.Sleep(time.Second) }
func a() { time.Sleep(1) }
func b() { for !ok() { time.Sleep(time.Millisecond) } }
func c() { for end := time.Now().Add(30*time.Second); !ok(); time.Sleep(time.Millisecond) {} }
func d() { for range 1000 { time.Sleep(time.Millisecond) } }
func e() { synctest.Test(t, func(t *testing.T) { time.Sleep(time.Hour); context.WithTimeout(ctx, time.Second) }) }
func f() { context.WithTimeout(ctx, 2*time.Second); context.WithTimeout(ctx, time.Minute) }
func g() { for { if ok() { return }; time.Sleep(1) } }
func h() { for { time.Sleep(1) } }
func i() { time.After(500*time.Millisecond); time.Now().Add(time.Second); time.Now().Add(-time.Second) }
func j() { for !ok() { go func() { time.Sleep(1) }() } }
`
	file, err := parser.ParseFile(token.NewFileSet(), "p_test.go", text, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range fileWaits(file) {
		got = append(got, w.where+" "+w.what)
	}
	want := []string{"v time.Sleep", "a time.Sleep", "d time.Sleep", "f context.WithTimeout", "h time.Sleep", "i time.After", "i time.Now().Add", "j time.Sleep"}
	if !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

type wait struct {
	where, what string
	pos         token.Pos
}

// fileWaits lists what waits for a time in the declarations of a file.
func fileWaits(file *ast.File) (found []wait) {
	for _, decl := range file.Decls {
		var where string
		switch d := decl.(type) {
		case *ast.FuncDecl:
			where = d.Name.Name
		case *ast.GenDecl:
			if d.Tok == token.VAR {
				where = d.Specs[0].(*ast.ValueSpec).Names[0].Name
			}
		}
		var around []ast.Node // the node that is visited and those around it
		ast.Inspect(decl, func(n ast.Node) bool {
			if n == nil {
				around = around[:len(around)-1]
				return true
			}
			around = append(around, n)
			call, is := n.(*ast.CallExpr)
			if !is || inBubble(around) {
				return true
			}
			what := nameOf(call.Fun)
			var of ast.Expr
			switch {
			case what == "time.Sleep" && polls(around):
			case what == "time.Sleep":
				found = append(found, wait{where, what, call.Pos()})
			case what == "context.WithTimeout" && len(call.Args) == 2:
				of = call.Args[1]
			case (what == "time.After" || what == "time.NewTimer" || what == "time.Now().Add") && len(call.Args) == 1:
				of = call.Args[0]
			}
			if d, known := duration(of); known && d > 0 && d < shortWait {
				found = append(found, wait{where, what, call.Pos()})
			}
			return true
		})
	}
	return found
}

// inBubble reports whether the last node is in a function that synctest runs.
func inBubble(around []ast.Node) bool {
	return slices.ContainsFunc(around[:len(around)-1], func(n ast.Node) bool {
		call, is := n.(*ast.CallExpr)
		return is && nameOf(call.Fun) == "synctest.Test"
	})
}

// polls reports whether the last node is in a loop that ends when something has happened:
// not one over numbers, and none without an end.
func polls(around []ast.Node) bool {
	for _, n := range slices.Backward(around) {
		switch n := n.(type) {
		case *ast.ForStmt:
			return n.Cond != nil || ends(n.Body)
		case *ast.RangeStmt, *ast.FuncLit:
			return false
		}
	}
	return false
}

func ends(body *ast.BlockStmt) (ends bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ReturnStmt:
			ends = true
		case *ast.BranchStmt:
			ends = ends || n.Tok == token.BREAK
		case *ast.FuncLit:
			return false
		}
		return true
	})
	return ends
}

// nameOf returns the name of a function of a package, or of a method of what one returns.
func nameOf(fun ast.Expr) string {
	s, is := fun.(*ast.SelectorExpr)
	if !is {
		return ""
	}
	switch x := s.X.(type) {
	case *ast.Ident:
		return x.Name + "." + s.Sel.Name
	case *ast.CallExpr:
		return nameOf(x.Fun) + "()." + s.Sel.Name
	}
	return ""
}

// duration returns the value of time.Second, 5*time.Second and their like.
func duration(e ast.Expr) (time.Duration, bool) {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		d, known := map[string]time.Duration{
			"time.Microsecond": time.Microsecond, "time.Millisecond": time.Millisecond, "time.Second": time.Second, "time.Minute": time.Minute, "time.Hour": time.Hour,
		}[nameOf(e)]
		return d, known
	case *ast.BasicLit:
		n, err := strconv.ParseInt(strings.ReplaceAll(e.Value, "_", ""), 0, 64)
		return time.Duration(n), err == nil
	case *ast.BinaryExpr:
		x, knownX := duration(e.X)
		y, knownY := duration(e.Y)
		return x * y, knownX && knownY && e.Op == token.MUL
	}
	return 0, false
}
