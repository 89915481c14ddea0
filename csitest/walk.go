package csitest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// Walk takes one volume of each kind through its lifecycle, as kubelet and the sidecars
// do, and writes each step to out, with a table of times: created, attached,
// staged, published to two pods, written and read, through kill -9 of the driver if
// that can be started again, expanded under writes, and deleted. A kind is "block" or
// the name of a file system; empty: every kind that the driver supports.
//
// The report has one result, which failed if any step failed.
func Walk(ctx context.Context, target Target, cfg Config, kinds []string, out io.Writer) (*Report, error) {
	w := &walk{kinds: kinds, out: out}
	report, err := checkRules(ctx, target, cfg, []Rule{{
		ID: "walk", Level: Must, Spec: "RPC Interactions",
		Title:   "a volume's full lifecycle works",
		Why:     "That is what every volume of a cluster does.",
		Needs:   needs(createVolume, nodeService),
		Timeout: 10 * time.Minute,
		check:   w.run,
	}})
	if report != nil {
		for _, s := range report.ExitStates {
			fmt.Fprintln(out, "  the driver ended:", s)
		}
	}
	return report, err
}

type walk struct {
	*ruleRun
	kinds   []string
	out     io.Writer
	volumes []*walked
	pods    []string // the second one only reads, if it can be kept from writing
}

// A walked volume is one of a kind.
type walked struct {
	*volume
	kind      string
	later     bool // it grows when it is staged the next time
	sum, note string
	device    device
}

const mib = 1 << 20

func (w *walk) run(c *ruleRun) {
	w.ruleRun, w.volumes = c, nil
	info := c.run.info
	fmt.Fprintf(w.out, "%s %s at %s\n", info.GetName(), info.GetVendorVersion(), c.run.target.Endpoint)
	w.pick()
	w.pods = []string{"a"}
	if c.run.readWriteOnce() == csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER {
		w.pods = append(w.pods, "b")
	} else {
		fmt.Fprintln(w.out, "one pod only: without SINGLE_NODE_MULTI_WRITER, two pods of a node cannot share a ReadWriteOnce volume")
	}
	fmt.Fprintf(w.out, "\n%-44s", "")
	for _, v := range w.volumes {
		fmt.Fprintf(w.out, "%12s", v.kind)
	}
	fmt.Fprintln(w.out)
	w.up()
	w.pause("kill -9 the driver; kubelet stages and publishes everything again", w.kill, restartable)
	w.pause("expand while pod a writes", w.expand, expandVolume)
	w.down()
}

// pick decides on the kinds.
func (w *walk) pick() {
	if len(w.kinds) == 0 {
		if w.has(mountAccess) {
			w.kinds = append(w.kinds, cmp.Or(w.ruleRun.run.cfg.FSType, "mount"))
		}
		if w.has(blockAccess) {
			w.kinds = append(w.kinds, "block")
		}
	}
	for _, kind := range w.kinds {
		w.volumes = append(w.volumes, &walked{kind: kind})
	}
}

// kindOf makes the request for a volume one of a kind.
func kindOf(kind string) volumeOption {
	return func(c *ruleRun, r *csi.CreateVolumeRequest) {
		if kind == "block" {
			block(c, r)
			return
		}
		r.VolumeCapabilities = []*csi.VolumeCapability{mountCapability(c.run)}
		if kind != "mount" {
			r.VolumeCapabilities[0].GetMount().FsType = kind
		}
	}
}

// pause begins a part of the story, which is left out if the run lacks something.
func (w *walk) pause(title string, part func(), need Need) {
	fmt.Fprintf(w.out, "\n%s\n", strings.ToUpper(title[:1])+title[1:])
	if w.has(need) {
		part()
		return
	}
	if need.Facility != "" {
		fmt.Fprintf(w.out, "  skipped: needs %s\n", need.Text)
	} else {
		fmt.Fprintf(w.out, "  skipped: the driver does not have %s\n", need.Text)
	}
}

// row does one step with every volume, and prints how long each took.
func (w *walk) row(step string, do func(*walked)) {
	fmt.Fprintf(w.out, "  %-42s", step)
	defer fmt.Fprintln(w.out)
	for _, v := range w.volumes {
		begin := time.Now()
		done := false
		func() {
			defer func() {
				if !done {
					fmt.Fprintf(w.out, "%12s", "FAILED")
				}
			}()
			v.note = ""
			do(v)
			done = true
		}()
		fmt.Fprintf(w.out, "%12s", cmp.Or(v.note, fmt.Sprintf("%.1f ms", float64(time.Since(begin).Microseconds())/1000)))
	}
}

func (w *walk) up() {
	c := w.ruleRun
	w.row(fmt.Sprintf("CreateVolume, %d MiB", c.run.cfg.Size/mib), func(v *walked) { v.volume = c.volume(kindOf(v.kind)) })
	if c.has(attachVolume) {
		w.row("ControllerPublishVolume", func(v *walked) { v.attach() })
	}
	w.stageAndPublish()
	if c.has(kernelView) {
		w.exchange()
	}
	if c.has(volumeStats) {
		var notes []string
		w.row("NodeGetVolumeStats", func(v *walked) {
			for _, u := range step(c, c.Node.NodeGetVolumeStats, v.statsRequest("a")).GetUsage() {
				if u.GetUnit() == csi.VolumeUsage_BYTES {
					notes = append(notes, fmt.Sprintf("%s %d of %d MiB used", v.kind, u.GetUsed()/mib, u.GetTotal()/mib))
				}
			}
		})
		fmt.Fprintf(w.out, "    %s\n", strings.Join(notes, ", "))
	}
	if c.has(kernelView) {
		w.showMounts()
	}
}

func (w *walk) stageAndPublish() {
	if w.has(stageVolume) {
		w.row("NodeStageVolume", func(v *walked) { v.stage() })
	}
	for i, pod := range w.pods {
		text := "NodePublishVolume to pod " + pod
		if i > 0 {
			text += ", fs read-only"
		}
		w.row(text, func(v *walked) {
			req := v.publishRequest(pod)
			req.Readonly = i > 0 && !v.isBlock() // a device is read-only for all or for none
			step(w.ruleRun, w.Node.NodePublishVolume, req)
		})
	}
}

// exchange writes through one pod and reads through the other.
func (w *walk) exchange() {
	w.row(fmt.Sprintf("pod a writes %d MiB", w.dataSize()/mib), func(v *walked) {
		v.sum = w.writeData(v)
		v.device = w.deviceBelow(v.targetPath("a"))
	})
	if len(w.pods) < 2 {
		return
	}
	w.row("pod b reads the same", func(v *walked) { w.checkData(v, "b") })
	w.row("pod b cannot write a file", func(v *walked) {
		if v.isBlock() {
			v.note = "-"
			return
		}
		w.refusesWrites(v.targetPath("b"))
	})
}

func (w *walk) showMounts() {
	fmt.Fprintln(w.out, "\nWhat is mounted")
	t := tabwriter.NewWriter(w.out, 2, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  DEVICE\tROOT\tTYPE\tACCESS\tMOUNTED AT")
	for _, m := range mounts(w.ruleRun.run.dir) {
		access, _, _ := strings.Cut(m.options, ",")
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\n", m.device, m.root, m.fsType, access, shorten(strings.TrimPrefix(m.point, w.ruleRun.run.dir+"/")))
	}
	_ = t.Flush() // as out has it
}

// shorten keeps a row on one line: volume handles are 64 hex digits.
func shorten(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if len(p) > 16 && !strings.Contains(p, ".") {
			parts[i] = p[:8] + "…"
		}
	}
	return strings.Join(parts, "/")
}

func (w *walk) kill() {
	before := len(mounts(w.ruleRun.run.dir))
	begin := time.Now()
	w.restart()
	fmt.Fprintf(w.out, "  killed, and ready again after %.1f s\n", time.Since(begin).Seconds())
	w.stageAndPublish()
	if !w.has(kernelView) {
		return
	}
	if after := len(mounts(w.ruleRun.run.dir)); after != before {
		w.fail(fmt.Sprintf("%d mounts as before", before), "%d", after)
	}
	w.row("pod "+w.pods[len(w.pods)-1]+" reads the same", func(v *walked) { w.checkData(v, w.pods[len(w.pods)-1]) })
	fmt.Fprintf(w.out, "    the same %d mounts as before\n", before)
}

func (w *walk) expand() {
	grown := 2 * w.ruleRun.run.cfg.Size
	kernel := w.has(kernelView)
	var writers []*writer
	if kernel {
		w.row("pod a begins to write", func(v *walked) { writers = append(writers, w.startWriter(v)) })
	}
	defer func() {
		for _, x := range writers {
			x.stop()
		}
	}()
	w.row(fmt.Sprintf("ControllerExpandVolume to %d MiB", grown/mib), func(v *walked) {
		step(w.ruleRun, w.Controller.ControllerExpandVolume, v.expandRequest(grown))
	})
	if w.has(nodeExpandVolume) {
		w.row("NodeExpandVolume", func(v *walked) {
			a := send(w.ruleRun, w.Node.NodeExpandVolume, v.nodeExpandRequest("a", grown))
			if v.later = a.is(codes.FailedPrecondition); v.later { // which is legal, and final
				v.note = "later"
				return
			}
			a.ok()
		})
		if slices.ContainsFunc(w.volumes, func(v *walked) bool { return v.later }) {
			fmt.Fprintln(w.out, "    later: FAILED_PRECONDITION, the driver grows it when it is staged again")
		}
	}
	if !kernel {
		return
	}
	var notes []string
	w.row("what pod a wrote meanwhile is there", func(v *walked) {
		i := slices.Index(w.volumes, v)
		written := writers[i].end(w.ruleRun, !v.later)
		w.checkData(v, "a")
		notes = append(notes, fmt.Sprintf("%s %.1f MiB", v.kind, float64(written)/mib))
	})
	fmt.Fprintf(w.out, "    %s\n", strings.Join(notes, ", "))
	w.row("pod a sees", func(v *walked) {
		if v.later {
			v.note = "later"
			return
		}
		v.note = fmt.Sprintf("%d MiB", w.grown(v, "a")/mib)
	})
}

// grown is the size that a pod sees, which must be that of the expanded volume.
func (w *walk) grown(v *walked, pod string) int64 {
	size, err := v.sizeAt(v.targetPath(pod))
	if err != nil {
		w.fail("a volume with a size", "%v", err)
	}
	// A file system keeps a part of the device for itself.
	if before := w.ruleRun.run.cfg.Size; size <= max(before, 2*before*3/4) {
		w.fail(fmt.Sprintf("a volume that has grown from %d to %d MiB", before/mib, 2*before/mib), "%d MiB", size/mib)
	}
	return size
}

// sizeAt is that of the file system, or of the device.
func (v *volume) sizeAt(path string) (int64, error) {
	if v.isBlock() {
		return deviceSize(path)
	}
	u, err := statfs(path)
	return u.total, err
}

func (w *walk) down() {
	fmt.Fprintln(w.out, "\nDown")
	for _, pod := range w.pods {
		w.row("NodeUnpublishVolume from pod "+pod, func(v *walked) { w.unpublishClean(v, pod) })
	}
	if slices.ContainsFunc(w.volumes, func(v *walked) bool { return v.later }) {
		w.row("staged again, pod a sees", func(v *walked) {
			if v.note = "-"; !v.later {
				return
			}
			v.unstage().stage()
			send(w.ruleRun, w.Node.NodeExpandVolume, v.nodeExpandRequest("a", 2*w.ruleRun.run.cfg.Size)) // as external-resizer's pods do
			v.publish("a")
			v.note = fmt.Sprintf("%d MiB", w.grown(v, "a")/mib)
			w.checkData(v, "a")
			w.unpublishClean(v, "a")
		})
	}
	if w.has(stageVolume) {
		w.row("NodeUnstageVolume", func(v *walked) { v.unstage() })
	}
	if w.has(attachVolume) {
		w.row("ControllerUnpublishVolume", func(v *walked) { v.detach() })
	}
	w.row("DeleteVolume", func(v *walked) { v.delete() })
	if !w.has(kernelView) {
		return
	}
	fmt.Fprintln(w.out, "\nWhat is left")
	for _, m := range mounts(w.ruleRun.run.dir) {
		w.error("no mount", "%s", m.point)
	}
	kinds := map[device]string{}
	for _, v := range w.volumes {
		kinds[v.device] = v.kind
	}
	for _, d := range remaining(slices.Collect(maps.Keys(kinds))...) {
		w.error("no device of the "+kinds[d]+" volume", "%s", d)
	}
	if len(w.failures) == 0 {
		fmt.Fprintln(w.out, "  no mount, no device, nothing at the targets")
	}
}

func (w *walk) unpublishClean(v *walked, pod string) {
	v.unpublish(pod)
	if info, err := os.Lstat(v.targetPath(pod)); !os.IsNotExist(err) {
		w.fail("nothing at the target path", "%v", orMode(info, err))
	}
}
