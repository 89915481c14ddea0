package csitest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// inventoryGiven: what is on the storage can be listed.
var inventoryGiven = Need{"a command that lists what is on the storage", FacilityInventory, func(r *run) bool { return r.target.Inventory != nil }}

// freeTimeout is how long a driver may take to free what was deleted.
const freeTimeout = 30 * time.Second

var storageRules = []Rule{
	{
		ID: "leaks.storage-after-kill", Level: Must, Spec: "Interoperability",
		Title: "calls that a kill interrupts, and that are repeated and undone, leave nothing on the storage",
		Why: "What was made and not recorded is found by nobody: it fills the storage with each crash, and is paid for. " +
			"The driver is killed at several points of each call that makes or deletes something.",
		Needs: needs(createVolume, restartable, inventoryGiven), Timeout: 10 * time.Minute,
		check: func(c *ruleRun) {
			before := c.storage()
			for _, m := range mutations {
				if slices.ContainsFunc(m.needs, func(n Need) bool { return !c.has(n) }) {
					continue
				}
				for _, after := range []time.Duration{3 * time.Millisecond, 30 * time.Millisecond} {
					try := m.prepare(c)
					ended := make(chan struct{})
					go func() {
						defer close(ended)
						try(c.ctx)
					}()
					time.Sleep(after)
					c.restart()
					<-ended
					c.finish(try)
				}
				left := c.cleanup(c.ctx)
				if c.clients(false); len(left) > 0 {
					c.fail("everything can be deleted", "%s", strings.Join(left, "\n"))
				}
				if now := c.storageAs(before); now != "" {
					c.fail("the storage as before, after "+m.rpc+" was interrupted", "%s", now)
				}
			}
		},
	},
}

// storageOfRun is about what all the rules before it did.
var storageOfRun = []Rule{
	{
		ID: "leaks.storage", Level: Must, Spec: "DeleteVolume",
		Title: "after everything was deleted the storage has what it had before the run",
		Why: "What stays when its volume or snapshot is deleted, or when a call is refused, cancelled or killed, is found by nobody. " +
			"It fills the storage, and is paid for.",
		Needs: needs(inventoryGiven),
		checkCalls: func(c *ruleRun, _ []*Call) {
			if now := c.storageAs(c.run.stored); now != "" {
				c.fail("the storage as before the run", "%s", now)
			}
		},
	},
}

// listStorage reads what is on the storage, sorted.
func (r *run) listStorage(ctx context.Context) ([]string, error) {
	if r.target.Inventory == nil {
		return nil, nil
	}
	all, err := r.target.Inventory(ctx)
	if err != nil {
		return nil, fmt.Errorf("csitest: list what is on the storage: %w", err)
	}
	return slices.Sorted(slices.Values(all)), nil
}

func (c *ruleRun) storage() []string {
	all, err := c.run.listStorage(c.ctx)
	if err != nil {
		c.fail("a list of what is on the storage", "%v", err)
	}
	return all
}

// storageAs waits until the storage has again what it had, and returns how it differs.
func (c *ruleRun) storageAs(before []string) (diff string) {
	end := time.Now().Add(cmp.Or(c.run.cfg.listTimeout, freeTimeout))
	for {
		if diff = difference(before, c.storage()); diff == "" || time.Now().After(end) {
			return diff
		}
		select {
		case <-c.ctx.Done():
			return diff
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// difference lists what two sorted lists do not have in common.
func difference(before, now []string) string {
	const most = 20
	var lines []string
	for len(before) > 0 || len(now) > 0 {
		switch {
		case len(before) > 0 && len(now) > 0 && before[0] == now[0]:
			before, now = before[1:], now[1:]
		case len(now) > 0 && (len(before) == 0 || now[0] < before[0]):
			lines, now = append(lines, "left: "+now[0]), now[1:]
		default:
			lines, before = append(lines, "gone: "+before[0]), before[1:]
		}
	}
	if len(lines) > most {
		lines = append(lines[:most], fmt.Sprintf("and %d more", len(lines)-most))
	}
	return strings.Join(lines, "\n")
}
