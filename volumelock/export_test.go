package volumelock

// Retained returns what an idle table should not keep.
func Retained(t *Table) (buckets, keys int, waiters bool) {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	t.lock(^shardSet(0))
	defer t.unlock(^shardSet(0))
	for i := range t.shards {
		buckets += len(t.shards[i].buckets)
		keys += t.shards[i].keys
	}
	return buckets, keys, t.queue.waiters != nil || t.queue.length.Load() != 0
}

// IdleBuckets is the number of buckets that an idle table may keep.
const IdleBuckets = shardCount * minBuckets

// Decided reports whether DefaultPolicy has a rule for the method.
func Decided(fullMethod string) bool { return rules[fullMethod] != nil }

// DecidedCount is the number of rules.
func DecidedCount() int { return len(rules) }
