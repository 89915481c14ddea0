package csitest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"
)

// A TortureConfig says how long, and how.
type TortureConfig struct {
	Duration time.Duration
	// Seed decides on what is done and when the driver is killed. The same seed does
	// the same as far as the machine does.
	Seed uint64
	// Volumes is how many are worked on at once. Default: 4.
	Volumes int
	// Progress is told, about once a second and at the end, from one goroutine at a
	// time.
	Progress func(TortureProgress)
}

// A TortureProgress says how far it is.
type TortureProgress struct {
	Elapsed       time.Duration
	Kills, Calls  int
	Lives, Checks int // volumes that came and went; times that data was compared
}

// Torture kills the driver with -9 at random moments while volumes come up, are
// written, read and expanded, and go down. Calls whose outcome is not known are repeated, as a
// CO does, and have to succeed; data that was made durable has to be there; in the
// end nothing may be left. The report has one result.
func Torture(ctx context.Context, target Target, cfg Config, torture TortureConfig) (*Report, error) {
	t := &tortured{TortureConfig: torture, begin: time.Now()}
	t.Volumes = max(t.Volumes, 1)
	return checkRules(ctx, target, cfg, []Rule{{
		ID: "torture", Level: Must, Spec: "Timeouts",
		Title: "a driver that is killed at random moments keeps its promises",
		Why: "The kernel, upgrades and power cuts do not ask for a good moment. Whatever the driver was at, a repeat has to succeed, data that was written " +
			"has to stay, and nothing may be left behind.",
		Needs:   needs(createVolume, restartable),
		Timeout: torture.Duration + 5*time.Minute,
		check:   t.run,
	}})
}

type tortured struct {
	TortureConfig
	begin                time.Time
	kills, lives, checks atomic.Int64
}

func (t *tortured) run(c *Case) {
	until := time.Now().Add(t.Duration)
	ended, killed := make(chan struct{}), make(chan error, 1)
	go func() { killed <- t.kill(c, ended) }()
	defer func() {
		select {
		case <-ended:
		default:
			close(ended)
			<-killed
		}
		t.tell(c)
	}()
	c.parallel(t.Volumes, func(i int) {
		random := rand.New(rand.NewPCG(t.Seed, uint64(i)+1))
		for time.Now().Before(until) && c.ctx.Err() == nil {
			t.life(c, random)
			t.lives.Add(1)
		}
	})
	close(ended)
	if err := <-killed; err != nil {
		c.fail("the driver is ready within "+readyTimeout.String()+" after kill -9 and start", "%v", err)
	}
	if c.has(kernelView) {
		for _, left := range mounts(c.run.dir) {
			c.error("no mount", "%s", left.point)
		}
	}
}

// kill kills the driver again and again, and tells how far everything is.
func (t *tortured) kill(c *Case, ended chan struct{}) error {
	random := rand.New(rand.NewPCG(t.Seed, 0))
	last := time.Now()
	for {
		select {
		case <-ended:
			return nil
		case <-time.After(time.Duration(20+random.IntN(1500)) * time.Millisecond):
		}
		if err := c.run.restart(c.ctx); err != nil {
			return err
		}
		t.kills.Add(1)
		if time.Since(last) > time.Second {
			last = time.Now()
			t.tell(c)
		}
	}
}

func (t *tortured) tell(c *Case) {
	if t.Progress != nil {
		t.Progress(TortureProgress{
			Elapsed: time.Since(t.begin), Kills: int(t.kills.Load()), Calls: c.run.record.count(),
			Lives: int(t.lives.Load()), Checks: int(t.checks.Load()),
		})
	}
}

// life is that of one volume. Every call is repeated until it succeeds.
func (t *tortured) life(c *Case, random *rand.Rand) {
	var opts []volumeOption
	if c.has(blockAccess) && random.IntN(3) == 0 {
		opts = append(opts, block)
	}
	v := c.volume(opts...)
	if !c.has(nodeService) {
		v.delete()
		return
	}
	v.up("a")
	data := bytesOf(v.id, 1+random.IntN(4*mib))
	t.keep(c, v, "a", data)
	for range random.IntN(4) {
		switch random.IntN(4) {
		case 0: // kubelet's restart
			v.stage().publish("a")
		case 1: // another pod
			v.unpublish("a").publish("a")
		case 2: // another node, and back
			v.unpublish("a").unstage().detach().up("a")
		case 3:
			if c.has(expandVolume) && v.created.GetCapacityBytes() > 0 {
				send(c, c.Controller.ControllerExpandVolume, v.expandRequest(v.created.GetCapacityBytes()+mib)) // or not, if it is killed
			}
		}
		t.compare(c, v, "a", data)
	}
	v.unpublish("a").unstage().detach().delete()
}

// keep makes data durable, if the volume can be seen.
func (t *tortured) keep(c *Case, v *volume, pod string, data []byte) {
	if !c.has(kernelView) {
		return
	}
	if v.isBlock() {
		if err := writeAt(v.targetPath(pod), data); err != nil {
			c.fail("a device that can be written", "%v", err)
		}
		return
	}
	c.write(v.file(v.targetPath(pod), "data"), data)
}

func (t *tortured) compare(c *Case, v *volume, pod string, data []byte) {
	if !c.has(kernelView) {
		return
	}
	got := make([]byte, len(data))
	f, err := os.Open(v.file(v.targetPath(pod), "data"))
	if err == nil {
		_, err = f.ReadAt(got, 0)
		_ = f.Close() // it was only read
	}
	if err != nil || !bytes.Equal(got, data) {
		c.fail(fmt.Sprintf("the %d bytes that were made durable in volume %s", len(data), v.id), "other data, %v", err)
	}
	t.checks.Add(1)
}
