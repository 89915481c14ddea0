package breaker

import (
	"sync"
	"time"
)

// Job is work in flight that [Group.Do] runs.
type Job struct {
	key     string
	server  *server
	waiting int  // callers; guarded by server.mu
	runs    bool // guarded by server.mu

	mu       sync.Mutex
	start    time.Time
	progress time.Time // the latest
	items    int64
	bytes    int64
}

// Progress records that items, such as files, and bytes were processed, and that the server
// has responded: call it only after the server did, with 0 and 0 if nothing can be counted. A
// nil Job records nothing.
func (j *Job) Progress(items, bytes int64) {
	if j == nil {
		return
	}
	j.mu.Lock()
	j.items += items
	j.bytes += bytes
	j.progress = time.Now()
	j.mu.Unlock()
	j.server.report(nil, responded, nil)
}

func (j *Job) idle() time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return time.Since(j.progress)
}

// watch calls fn once the job has made no progress for d, unless stop is called first.
func (j *Job) watch(d time.Duration, fn func()) (stop func()) {
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

// join adds a caller to the job with that key.
func (s *server) join(key string) *Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.job(key)
	j.waiting++
	return j
}

// job is called with mu held.
func (s *server) job(key string) *Job {
	j := s.jobs[key]
	if j == nil {
		now := time.Now()
		j = &Job{key: key, server: s, start: now, progress: now}
		s.jobs[key] = j
	}
	return j
}

func (s *server) leave(j *Job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j.waiting--
	s.drop(j)
}

// run is called by the goroutine that runs the work.
func (s *server) run(key string) *Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.job(key)
	j.runs = true
	j.mu.Lock()
	defer j.mu.Unlock()
	j.start = time.Now()
	j.progress = j.start
	j.items, j.bytes = 0, 0
	return j
}

// finish is called by the goroutine that ran the work. Its callers may have returned
// already: its result still counts.
func (s *server) finish(j *Job, result outcome, err error) {
	s.report(nil, result, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	j.runs = false
	s.drop(j)
}

func (s *server) drop(j *Job) {
	if j.waiting == 0 && !j.runs && s.jobs[j.key] == j {
		delete(s.jobs, j.key)
	}
}
