package main

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// job is an operation in flight on a server, with its progress, for its callers and the
// debug page. Progress distinguishes a copy that takes an hour from a server that does
// not respond.
type job struct {
	key   string
	of    *server
	users int  // callers that wait; guarded by server.mu
	runs  bool // guarded by server.mu

	mu    sync.Mutex
	start time.Time
	last  time.Time // of the latest progress

	files, bytes atomic.Int64
}

// Progress records progress, and with it that the server responds.
func (j *job) Progress(files, bytes int64) {
	if j == nil {
		return
	}
	j.files.Add(files)
	j.bytes.Add(bytes)
	j.mu.Lock()
	j.last = time.Now()
	j.mu.Unlock()
	j.of.report(false, nil)
}

func (j *job) idle() time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return time.Since(j.last)
}

// watch calls fn once the job made no progress for d, unless stop is called first.
func (j *job) watch(d time.Duration, fn func()) (stop func()) {
	end := make(chan struct{})
	go func() {
		wait := time.NewTimer(d)
		defer wait.Stop()
		for {
			select {
			case <-end:
				return
			case <-wait.C:
			}
			left := d - j.idle()
			if left <= 0 {
				fn()
				return
			}
			wait.Reset(left)
		}
	}()
	return func() { close(end) }
}

func (s *server) join(key string) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.job(key)
	j.users++
	return j
}

// job is called with mu held.
func (s *server) job(key string) *job {
	j := s.jobs[key]
	if j == nil {
		now := time.Now()
		j = &job{key: key, of: s, start: now, last: now}
		s.jobs[key] = j
	}
	return j
}

// begin is called by the goroutine that runs the operation.
func (s *server) begin(key string) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.job(key)
	j.runs = true
	j.mu.Lock()
	defer j.mu.Unlock()
	j.start = time.Now()
	j.last = j.start
	return j
}

func (s *server) leave(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j.users--
	s.drop(j)
}

// end is called by the goroutine that runs the operation. Its callers may have returned
// already: its result still counts for the server's breaker.
func (s *server) end(j *job, err error) {
	s.report(false, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	j.runs = false
	s.drop(j)
}

func (s *server) drop(j *job) {
	if j.users == 0 && !j.runs {
		delete(s.jobs, j.key)
	}
}

// jobRow is a job on the debug page.
type jobRow struct {
	Server   string
	Work     string
	Start    time.Time
	Progress time.Time // the latest
	Files    int64
	Bytes    int64
	Waiting  int // callers
}

// Jobs lists the operations in flight, the oldest first.
func (s *servers) Jobs() []jobRow {
	var rows []jobRow
	for _, srv := range s.all() {
		srv.mu.Lock()
		for _, j := range srv.jobs {
			j.mu.Lock()
			rows = append(rows, jobRow{srv.name, j.key, j.start, j.last, j.files.Load(), j.bytes.Load(), j.users})
			j.mu.Unlock()
		}
		srv.mu.Unlock()
	}
	slices.SortFunc(rows, func(a, b jobRow) int { return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.Work, b.Work)) })
	return rows
}
