package csitest

import (
	"context"
	"fmt"
)

const keepsRunning = "the driver keeps running, and answers"

// restartIfLost restarts a driver that exited or stopped answering during the rule, which
// is a failure of the rule. If it does not start, no other rule is run.
func (r *run) restartIfLost(ctx context.Context, c *ruleRun) {
	if ctx.Err() != nil {
		return
	}
	err := r.exited()
	if err == nil && c.lost.Load() {
		err = r.answers(ctx)
	}
	if err == nil {
		return
	}
	c.error(keepsRunning, "%v", err)
	if restartable.met(r) {
		if err := r.restart(ctx); err != nil && ctx.Err() == nil {
			c.error("the driver starts again", "%v", err)
			r.down = err
		}
	}
}

// restart kills the driver with -9, starts it again and waits until it is ready.
func (r *run) restart(ctx context.Context) error {
	if err := r.killAndStart(ctx, r.processes); err != nil {
		return err
	}
	return r.ready(ctx)
}

// killAndStart kills processes with -9, or the driver that was not started here, and starts
// them again.
func (r *run) killAndStart(ctx context.Context, processes []*process) error {
	if len(r.processes) == 0 {
		if err := r.target.Restart(ctx); err != nil {
			return fmt.Errorf("csitest: restart the driver: %w", err)
		}
	}
	for _, p := range processes {
		p.kill()
	}
	for _, p := range processes {
		if err := p.start(); err != nil {
			return err
		}
	}
	return nil
}

// restart kills the driver with -9, starts it again and waits until it is ready.
func (c *ruleRun) restart() {
	if err := c.run.restart(c.ctx); err != nil {
		c.fail("the driver is ready within "+readyTimeout.String()+" after kill -9 and start", "%v", err)
	}
}
