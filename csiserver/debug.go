package csiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// A HealthSection is what an application adds to [Server.Health]: a table on the debug
// page, by [DebugTable], or a check of readiness, by [ReadyCheck].
type HealthSection struct {
	name  string
	rows  func() table
	check func(context.Context) error
}

// ReadyCheck adds a check to /readyz, which returns 503 with name and error as
// long as check returns an error. The debug page lists it under "ready". /healthz
// ignores it. check is called for each probe and each page, concurrently, and has to
// return immediately, from memory.
//
//	server.Health(csiserver.ReadyCheck("registration", registrar.Check))
func ReadyCheck(name string, check func(context.Context) error) HealthSection {
	return HealthSection{name: name, check: check}
}

func checkTable(checks []check) table {
	t := table{columns: []string{"check", "ready", "reason"}}
	for _, c := range checks {
		reason := ""
		err := c.run(context.Background())
		if err != nil {
			reason = err.Error()
		}
		t.rows = append(t.rows, []string{c.name, strconv.FormatBool(err == nil), reason})
	}
	return t
}

// DebugTable adds a table to the debug page, with a row for each element that snapshot
// returns and a column for each exported field, so that this is enough:
//
//	server.Health(csiserver.DebugTable("locks", locks.Snapshot), csiserver.DebugTable("stuck", group.Snapshot))
//
// The fields of nested structs become columns too, unless the struct is a
// [fmt.Stringer]; a [time.Time] is shown as its age. A nil error and a zero time are
// left empty. snapshot is called for each page and has to return immediately, from
// memory.
func DebugTable[T any](name string, snapshot func() []T) HealthSection {
	return HealthSection{name: name, rows: func() table {
		now := time.Now()
		t := table{columns: columnsOf(reflect.TypeFor[T]())}
		for _, x := range snapshot() {
			t.rows = append(t.rows, cellsOf(nil, reflect.ValueOf(&x).Elem(), now)) // of type T, be it an interface
		}
		return t
	}}
}

// debugHandler shows sections.
func (s *Server) debugHandler(sections []HealthSection) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if r.FormValue("format") == "json" || strings.Contains(r.Header.Get("Accept"), "application/json") {
			w.Header().Set("Content-Type", "application/json")
			page := map[string]any{"plugin": s.name}
			for _, x := range sections {
				page[x.name] = x.rows().objects()
			}
			_ = json.NewEncoder(w).Encode(page)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "%s, %s\n", s.name, time.Now().UTC().Format(time.RFC3339))
		for _, x := range sections {
			t := x.rows()
			fmt.Fprintf(w, "\n%s: %d\n", x.name, len(t.rows))
			t.print(w)
		}
	})
}

// callTable lists the calls in flight, oldest first.
func (s *Server) callTable() table {
	t := table{columns: []string{"rpc", "age", "caller", "request_id", "about"}}
	for _, u := range s.log.calls.running() {
		var about []string
		for _, a := range requestAttrs(nil, u.request) {
			about = append(about, a.String())
		}
		t.rows = append(t.rows, []string{shortName(u.method), age(time.Since(u.start)), caller(u), u.requestID(), strings.Join(about, " ")})
	}
	return t
}

// caller describes whether the caller still waits for a call, and for how long.
func caller(ctx context.Context) string {
	if ctx.Err() != nil {
		return "gone"
	}
	if t, ok := ctx.Deadline(); ok {
		return "waits " + age(time.Until(t))
	}
	return "waits"
}

type table struct {
	columns []string
	rows    [][]string
}

// print writes the table as text; without rows it writes nothing.
func (t table) print(w io.Writer) {
	if len(t.rows) == 0 {
		return
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "  %s\n", strings.ToUpper(strings.Join(t.columns, "\t")))
	for _, row := range t.rows {
		cells := make([]string, len(row))
		for i, c := range row {
			if cells[i] = printable(c); c == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintf(tw, "  %s\n", strings.Join(cells, "\t"))
	}
	tw.Flush()
}

// printable quotes control characters, which would break the table or the terminal.
func printable(s string) string {
	if strings.ContainsFunc(s, unicode.IsControl) {
		return strconv.Quote(s)
	}
	return s
}

func (t table) objects() []map[string]string {
	objects := make([]map[string]string, len(t.rows))
	for i, row := range t.rows {
		objects[i] = make(map[string]string, len(row))
		for j, c := range row {
			objects[i][t.columns[j]] = c
		}
	}
	return objects
}

var (
	timeType     = reflect.TypeFor[time.Time]()
	stringerType = reflect.TypeFor[fmt.Stringer]()
)

// expanded reports whether values of t have a column for each field.
func expanded(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t != timeType && !t.Implements(stringerType)
}

func columnsOf(t reflect.Type) (names []string) {
	if !expanded(t) {
		return []string{"value"}
	}
	for i := range t.NumField() {
		f := t.Field(i)
		switch {
		case !f.IsExported():
		case expanded(f.Type):
			names = append(names, columnsOf(f.Type)...)
		default:
			names = append(names, snake(f.Name))
		}
	}
	return names
}

func cellsOf(cells []string, v reflect.Value, now time.Time) []string {
	if expanded(v.Type()) {
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				cells = cellsOf(cells, v.Field(i), now)
			}
		}
		return cells
	}
	switch x := v.Interface().(type) {
	case nil:
		return append(cells, "")
	case time.Time:
		if x.IsZero() {
			return append(cells, "")
		}
		return append(cells, age(now.Sub(x)))
	default:
		return append(cells, fmt.Sprint(x))
	}
}

// age rounds a duration for reading.
func age(d time.Duration) string {
	switch {
	case d > time.Minute:
		return d.Round(time.Second).String()
	case d > time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// snake returns the name of a field in the form of log keys: RequestID is request_id.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		upper := r >= 'A' && r <= 'Z'
		startsWord := upper && i > 0 && (name[i-1] >= 'a' || i+1 < len(name) && name[i+1] >= 'a')
		if startsWord {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}
