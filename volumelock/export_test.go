package volumelock

// Retained reports what an idle table should not have.
func Retained(t *Table) (buckets, keys int, waiters bool) {
	t.line.mu.Lock()
	defer t.line.mu.Unlock()
	t.lock(^shardSet(0))
	defer t.unlock(^shardSet(0))
	for i := range t.shards {
		buckets += len(t.shards[i].buckets)
		keys += t.shards[i].keys
	}
	return buckets, keys, t.line.waiters != nil || t.line.length.Load() != 0
}

// IdleBuckets is how many of them a table may keep.
const IdleBuckets = shardCount * minBuckets

// Decided reports whether DefaultPolicy has a line for the method.
func Decided(fullMethod string) bool { return rules[fullMethod] != nil }

// DecidedCount is the number of lines.
func DecidedCount() int { return len(rules) }
