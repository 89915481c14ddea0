package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"path"
	"strings"
)

// operators emits the mutants of a function. What is wrong in drivers decides which there
// are: a check, a write or a cleanup that is missing, a wrong code, a field that is not
// read or not set, and the seams of pages and ranges.
type operators struct {
	info *types.Info
	text func(ast.Node) string
	emit func(op string, from, to token.Pos, text string)
}

func (o *operators) function(f *ast.FuncDecl) {
	o.early(f)
	var parents []ast.Node
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if n == nil {
			parents = parents[:len(parents)-1]
			return true
		}
		var parent ast.Node
		if len(parents) > 0 {
			parent = parents[len(parents)-1]
		}
		parents = append(parents, n)
		switch n := n.(type) {
		case *ast.IfStmt:
			o.condition(n)
		case *ast.ExprStmt:
			if call, ok := n.X.(*ast.CallExpr); ok && !o.isNoise(call) {
				o.wrap("skip-call", n, "if false { ", " }")
			}
		case *ast.DeferStmt:
			o.wrap("forget-defer", n, "if false { ", " }")
		case *ast.AssignStmt:
			o.assignment(n)
		case *ast.CallExpr:
			o.call(n, parent)
		case *ast.BinaryExpr:
			o.binary(n)
		case *ast.SelectorExpr:
			o.code(n)
		case *ast.CompositeLit:
			o.literal(n)
		case *ast.Ident:
			o.boolean(n)
		case *ast.CaseClause:
			o.switchCase(n)
		case *ast.RangeStmt:
			o.emit("first-only", n.Body.Rbrace, n.Body.Rbrace, "; break ")
		case *ast.FuncLit:
			if returns(n.Type) && len(n.Body.List) > 1 {
				o.emit("return-early", n.Body.Lbrace+1, n.Body.Lbrace+1, " if true { return "+o.zeroes(n.Type)+" }; ")
			}
		}
		return true
	})
}

func (o *operators) wrap(op string, n ast.Node, before, after string) {
	o.emit(op, n.Pos(), n.End(), before+o.text(n)+after)
}

// early returns success before anything is done.
func (o *operators) early(f *ast.FuncDecl) {
	if returns(f.Type) && len(f.Body.List) > 1 {
		o.emit("return-early", f.Body.Lbrace+1, f.Body.Lbrace+1, " if true { return "+o.zeroes(f.Type)+" }; ")
	}
}

// returns reports whether the last result is an error.
func returns(f *ast.FuncType) bool {
	if f.Results == nil {
		return false
	}
	last, ok := f.Results.List[len(f.Results.List)-1].Type.(*ast.Ident)
	return ok && last.Name == "error"
}

// zeroes returns results, of which the error is nil and a message is empty.
func (o *operators) zeroes(f *ast.FuncType) string {
	var all []string
	for _, r := range f.Results.List {
		zero := "*new(" + o.text(r.Type) + ")"
		if star, ok := r.Type.(*ast.StarExpr); ok {
			zero = "new(" + o.text(star.X) + ")"
		}
		for range max(1, len(r.Names)) {
			all = append(all, zero)
		}
	}
	return strings.Join(all, ", ")
}

// condition drops a check, or makes it always true.
func (o *operators) condition(n *ast.IfStmt) {
	op := "drop-branch"
	if len(n.Body.List) > 0 {
		switch n.Body.List[len(n.Body.List)-1].(type) {
		case *ast.ReturnStmt, *ast.BranchStmt:
			op = "drop-check"
		}
	}
	o.wrap(op, n.Cond, "false && (", ")")
	if !o.comparesError(n.Cond) { // the first call without an error would fail
		o.wrap("always", n.Cond, "true || (", ")")
	}
}

// comparesError reports whether the expression is err != nil or err == nil.
func (o *operators) comparesError(x ast.Expr) bool {
	b, ok := x.(*ast.BinaryExpr)
	return ok && o.text(b.Y) == "nil" && o.isError(b.X)
}

func (o *operators) isError(x ast.Expr) bool {
	t := o.info.TypeOf(x)
	return t != nil && types.Identical(t, types.Universe.Lookup("error").Type())
}

func (o *operators) binary(n *ast.BinaryExpr) {
	switch n.Op {
	case token.LAND:
		o.wrap("drop-operand", n.X, "true || (", ")")
		o.wrap("drop-operand", n.Y, "(true || (", "))")
	case token.LOR:
		o.wrap("drop-operand", n.X, "false && (", ")")
		o.wrap("drop-operand", n.Y, "false && (", ")")
	}
	other := map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}[n.Op]
	if other != "" {
		o.emit("boundary", n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), other)
	}
	other = map[token.Token]string{token.EQL: "!=", token.NEQ: "=="}[n.Op]
	if other != "" && !o.comparesError(n) {
		o.emit("negate", n.OpPos, n.OpPos+2, other)
	}
	if one, ok := n.Y.(*ast.BasicLit); ok && one.Value == "1" && (n.Op == token.ADD || n.Op == token.SUB) {
		o.emit("off-by-one", n.Y.Pos(), n.Y.End(), "0")
	}
}

// codes are what a driver confuses.
var codes = map[string]string{
	"codes.InvalidArgument": "NotFound", "codes.NotFound": "InvalidArgument", "codes.AlreadyExists": "Aborted", "codes.OutOfRange": "InvalidArgument",
	"codes.FailedPrecondition": "Internal", "codes.DataLoss": "Unavailable", "codes.ResourceExhausted": "Internal", "codes.Unavailable": "Internal", "codes.Internal": "Unavailable",
	"codes.Aborted": "Internal", "codes.Unimplemented": "Internal", "codes.DeadlineExceeded": "Internal", "codes.PermissionDenied": "Internal",
	"csierr.Invalid": "NotFound", "csierr.NotFound": "Invalid", "csierr.Conflict": "Busy", "csierr.Precondition": "NotFound",
	"csierr.OutOfRange": "Invalid", "csierr.NoSpace": "Invalid", "csierr.Busy": "Precondition", "csierr.Uncertain": "Internal",
	"csierr.DataLoss": "Uncertain", "csierr.Internal": "Uncertain",
}

func (o *operators) code(n *ast.SelectorExpr) {
	if other := codes[o.text(n)]; other != "" {
		o.emit("swap-code", n.Sel.Pos(), n.Sel.End(), other)
	}
}

func (o *operators) assignment(n *ast.AssignStmt) {
	if n.Tok == token.DEFINE {
		return
	}
	if n.Tok != token.ASSIGN {
		o.wrap("drop-assignment", n.Rhs[0], "mutantZero(", ")")
		return
	}
	if len(n.Lhs) != len(n.Rhs) {
		return
	}
	for i, lhs := range n.Lhs {
		if name := o.text(lhs); name != "_" && !o.isError(lhs) {
			o.emit("drop-assignment", n.Rhs[i].Pos(), n.Rhs[i].End(), "mutantKeep("+name+", "+o.text(n.Rhs[i])+")")
		}
	}
}

// call skips one that returns an error, and ignores a field of a request.
func (o *operators) call(n *ast.CallExpr, parent ast.Node) {
	if _, deferred := parent.(*ast.DeferStmt); deferred {
		return
	}
	if _, statement := parent.(*ast.ExprStmt); statement {
		return
	}
	if o.isError(n) && !o.isNoise(n) {
		o.wrap("skip-call", n, "mutantSkip(func() error { return ", " })")
	}
	sel, ok := n.Fun.(*ast.SelectorExpr)
	if !ok || len(n.Args) > 0 || !strings.HasPrefix(sel.Sel.Name, "Get") {
		return
	}
	if outer, ok := parent.(*ast.SelectorExpr); ok && strings.HasPrefix(outer.Sel.Name, "Get") {
		return // the getter around it is the field
	}
	if f, ok := o.info.Uses[sel.Sel].(*types.Func); ok && f.Pkg() != nil && o.isMessage(f) {
		o.wrap("ignore-field", n, "mutantZero(", ")")
	}
}

// isMessage reports whether f is a getter of a message, or of an interface of several messages.
func (o *operators) isMessage(f *types.Func) bool {
	sig := f.Signature()
	if sig.Recv() == nil || sig.Results().Len() != 1 {
		return false
	}
	return path.Base(f.Pkg().Path()) == "csi" || types.IsInterface(sig.Recv().Type())
}

// isNoise: what only makes or describes errors, logs, or ends the process.
func (o *operators) isNoise(n *ast.CallExpr) bool {
	var id *ast.Ident
	switch f := n.Fun.(type) {
	case *ast.Ident:
		id = f
	case *ast.SelectorExpr:
		id = f.Sel
	default:
		return false
	}
	obj := o.info.Uses[id]
	if obj == nil || obj.Pkg() == nil {
		return id.Name == "panic" || id.Name == "Error"
	}
	switch path.Base(obj.Pkg().Path()) {
	case "errors", "fmt", "status", "csierr", "slog":
		return true
	}
	return id.Name == "Err"
}

// literal leaves fields of a struct at their zero values.
func (o *operators) literal(n *ast.CompositeLit) {
	t := o.info.TypeOf(n)
	if t == nil {
		return
	}
	if p, ok := t.Underlying().(*types.Pointer); ok { // elided in a list
		t = p.Elem()
	}
	if _, ok := t.Underlying().(*types.Struct); !ok {
		return
	}
	for _, e := range n.Elts {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok || o.isBoolean(kv.Value) {
			continue
		}
		if tv := o.info.Types[kv.Value]; tv.IsNil() {
			continue
		}
		if _, function := o.info.TypeOf(kv.Value).Underlying().(*types.Signature); function {
			continue // a call of nil
		}
		if call, ok := kv.Value.(*ast.CallExpr); ok && len(call.Args) == 0 && strings.Contains(o.text(call.Fun), ".Get") {
			continue // as ignore-field
		}
		o.wrap("drop-field", kv.Value, "mutantZero(", ")")
	}
}

func (o *operators) isBoolean(x ast.Expr) bool {
	id, ok := x.(*ast.Ident)
	return ok && (id.Name == "true" || id.Name == "false")
}

func (o *operators) boolean(n *ast.Ident) {
	if _, constant := o.info.Uses[n].(*types.Const); constant && o.isBoolean(n) {
		o.emit("flip", n.Pos(), n.End(), map[string]string{"true": "false", "false": "true"}[n.Name])
	}
}

// switchCase does nothing in a case.
func (o *operators) switchCase(n *ast.CaseClause) {
	if len(n.Body) > 0 {
		o.emit("drop-case", n.Body[0].Pos(), n.Body[0].Pos(), "if true { break }; ")
	}
}
