package volumelock

// Retained reports what an idle table should not have.
func Retained(t *Table) (hasMap bool, entries int, hasWaiters bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.keys != nil, len(t.keys), t.changed != nil
}

// Decided reports whether DefaultPolicy has a line for the method.
func Decided(fullMethod string) bool { return rules[fullMethod] != nil }

// DecidedCount is the number of lines.
func DecidedCount() int { return len(rules) }
