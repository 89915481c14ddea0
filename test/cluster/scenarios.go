//go:build linux

package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

var parts = []part{
	{
		overlay: "blockdriver/deploy/overlays/single-node", namespace: "blockdriver", components: []string{"group-snapshots"},
		nodes: []string{"node1"}, ready: []string{"daemonset/blockdriver-node"},
		scenarios: []scenario{
			{name: "claim waits for its pod, which writes", run: waitForConsumer},
			{name: "xfs", run: xfs},
			{name: "raw block", run: rawBlock},
			{name: "fsGroup, and then another", run: fsGroup},
			{name: "subPath", run: subPath},
			{name: "read-only", run: readOnly},
			{name: "ReadWriteOncePod", run: oncePod},
			{name: "generic ephemeral volume", run: ephemeral},
			{name: "expand xfs in use", run: expandInUse},
			{name: "expand ext4 not in use", run: expandDetached},
			{name: "snapshot of a volume in use, restored larger", run: snapshot},
			{name: "clone", run: clone},
			{name: "group snapshot, restored", run: groupSnapshot},
			{name: "VolumeAttributesClass", run: attributes},
			{name: "capacity exhausted", run: exhausted},
			{name: "SIGKILL of the driver during I/O", run: killDriver, alone: true, long: true},
			{name: "kubelet restarts", run: restartKubelet, alone: true, long: true},
			{name: "delete while the driver is down", run: deleteWhileDown, alone: true, long: true},
			{name: "node loses power", run: reboot, alone: true, long: true},
			{name: "kubectl delete -k with a volume in use", run: removeInUse, alone: true, long: true},
		},
	},
	{
		overlay: "blockdriver/deploy/overlays/single-node", namespace: "blockdriver", components: []string{"group-snapshots"}, arguments: []string{"-max-volumes=30"},
		nodes: []string{"node1"}, ready: []string{"daemonset/blockdriver-node"},
		scenarios: []scenario{
			{name: "storage suite, ext4", run: suiteRun{driver: "blockdriver", class: "blockdriver-ext4", parallel: 8}.run, alone: true, suite: true},
			{name: "storage suite, xfs in use grows", run: suiteRun{driver: "blockdriver", class: "blockdriver-xfs", of: "blockdriver-ext4", parallel: 8, focus: "(volume-expand|expansion of pvcs)"}.run, alone: true, suite: true},
		},
	},
	{
		overlay: "blockdriver/deploy/overlays/single-node", readme: "Deploying", namespace: "blockdriver",
		nodes: []string{"node1"}, ready: []string{"daemonset/blockdriver-node"},
		scenarios: []scenario{
			{name: "README.md: Deploying, with the samples", run: followReadme(samplesRun)},
		},
	},
	{
		overlay: "blockdriver/deploy/helm", readme: "With Helm", namespace: "blockdriver",
		nodes: []string{"node1"}, ready: []string{"daemonset/blockdriver-node"},
		scenarios: []scenario{
			{name: "README.md: With Helm, with helm test", run: followReadme(waitForConsumer), long: true},
		},
	},
	{
		overlay: "blockdriver/deploy/overlays/shared-pool", namespace: "blockdriver",
		nodes: []string{"node1", "node2"}, ready: []string{"daemonset/blockdriver-node", "deployment/blockdriver-controller"},
		scenarios: []scenario{
			{name: "pod moves to the other node", run: move, long: true},
			{name: "leader of two controllers is killed", run: killLeader, alone: true, long: true},
			{name: "update from an earlier commit while pods write", run: update, alone: true, long: true, previous: true},
			{name: "node dies: out-of-service taint", run: outOfService, alone: true, long: true},
		},
	},
	{
		overlay: "blockdriver/deploy/overlays/sidecar-free-node", namespace: "blockdriver", components: []string{"node-lifecycle"},
		nodes: []string{"node1", "node2"}, ready: []string{"daemonset/blockdriver-node", "deployment/blockdriver-controller"},
		scenarios: []scenario{
			{name: "driver registers itself", run: waitForConsumer, long: true},
			{name: "start-up taint", run: startupTaint, alone: true, long: true},
			{name: "drained node", run: drain, alone: true, long: true},
		},
	},
	{
		overlay: "nfsdriver/deploy/overlays/cluster", namespace: "nfsdriver",
		nodes: []string{"node1"}, ready: []string{"statefulset/nfsdriver-controller", "daemonset/nfsdriver-node"},
		scenarios: []scenario{
			{name: "nfsdriver is registered", run: nfsRegistered, long: true},
			{name: "nfsdriver reports a server that it cannot mount", run: nfsUnreachable, long: true},
		},
	},
	{
		overlay: "nfsdriver/deploy/overlays/mine", readme: "Deploying", namespace: "nfsdriver", guests: true,
		nodes: []string{"vm1", "vm2"}, ready: []string{"statefulset/nfsdriver-controller", "daemonset/nfsdriver-node"},
		scenarios: []scenario{
			{name: "nfs: two nodes write to one volume", run: nfsShared},
			{name: "nfs: fsGroup, subPath, read-only", run: nfsPods},
			{name: "nfs: expand", run: nfsExpand},
			{name: "nfs: snapshot, restored", run: nfsSnapshot},
			{name: "nfs: clone", run: nfsClone},
			{name: "nfs: the data of a deleted claim", run: nfsDeleted},
			{name: "nfs: SIGKILL of the driver during I/O", run: nfsKill, alone: true},
			{name: "nfs: inline volumes enabled on a live cluster", run: nfsInline, alone: true},
			{name: "README.md: Deploying, with the samples", run: followReadme(nfsSamples), alone: true},
		},
	},
	{
		overlay: "nfsdriver/deploy/overlays/mine", namespace: "nfsdriver", components: []string{"inline-volumes"}, guests: true,
		nodes: []string{"vm1", "vm2"}, ready: []string{"statefulset/nfsdriver-controller", "daemonset/nfsdriver-node"},
		scenarios: []scenario{
			{name: "storage suite, nfs", run: suiteRun{driver: "nfsdriver", class: "nfsdriver", parallel: 4, focus: nfsSubset}.run, alone: true, suite: true},
		},
	},
}

// claim is the YAML of one. more are further lines of its spec.
func claim(name, class, size string, more ...string) string {
	s := fmt.Sprintf(`---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s, labels: {group: %s}}
spec:
  storageClassName: %s
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: %s}}
`, name, strings.TrimRight(name, "0123456789"), class, size)
	for _, m := range more {
		s += "  " + m + "\n"
	}
	return s
}

func from(group, kind, name string) string {
	return fmt.Sprintf("dataSource: {apiGroup: %q, kind: %s, name: %s}", group, kind, name)
}

// pod is the YAML of one that sleeps with a claim of its name at /data. more are further
// lines of its spec.
func pod(name, claim string, more ...string) string {
	return podWith(name, fmt.Sprintf("persistentVolumeClaim: {claimName: %s}", claim), "volumeMounts: [{name: data, mountPath: /data}]", more...)
}

func podWith(name, volume, mounts string, more ...string) string {
	s := fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: c
      image: %s
      command: [sh, -c, 'trap exit TERM; test ! -x /data/run || . /data/run; while :; do sleep 1; done']
      %s
  volumes: [{name: data, %s}]
`, name, busyboxImage, mounts, volume)
	for _, m := range more {
		s += "  " + m + "\n"
	}
	return s
}

func waitForConsumer(s *space) error {
	if err := s.apply(claim("data", "blockdriver-ext4", "64Mi")); err != nil {
		return err
	}
	if err := s.event("data", "WaitForFirstConsumer"); err != nil {
		return err
	}
	start := time.Now()
	if err := s.apply(pod("p", "data")); err != nil {
		return err
	}
	if err := errors.Join(s.ready("p"), s.want("p", "echo written > /data/f; sync; cat /data/f", "written")); err != nil {
		return err
	}
	s.note = fmt.Sprintf("pod ready after %.1f s", time.Since(start).Seconds())
	// Another pod finds the data.
	if err := s.delete("pod", "p"); err != nil {
		return err
	}
	if err := s.apply(pod("q", "data")); err != nil {
		return err
	}
	return errors.Join(s.ready("q"), s.want("q", "cat /data/f; grep -o ' /data ext4' /proc/mounts", "written\n /data ext4"))
}

func xfs(s *space) error {
	if err := s.apply(claim("data", "blockdriver-xfs", "300Mi") + pod("p", "data")); err != nil {
		return err
	}
	return errors.Join(s.ready("p"), s.want("p", "echo x > /data/f; grep -o ' /data xfs' /proc/mounts", "/data xfs"))
}

func rawBlock(s *space) error {
	if err := s.apply(claim("data", "blockdriver-ext4", "64Mi", "volumeMode: Block") +
		podWith("p", "persistentVolumeClaim: {claimName: data}", "volumeDevices: [{name: data, devicePath: /dev/raw}]")); err != nil {
		return err
	}
	return errors.Join(s.ready("p"), s.want("p", `blockdev --getsize64 /dev/raw
echo written | dd of=/dev/raw bs=4096 conv=sync,fsync 2>/dev/null
dd if=/dev/raw bs=8 count=1 2>/dev/null`, "67108864\nwritten"))
}

func fsGroup(s *space) error {
	as := func(id int) string {
		return fmt.Sprintf("securityContext: {runAsUser: %d, runAsGroup: %d, fsGroup: %d}", id, id, id)
	}
	if err := s.apply(claim("data", "blockdriver-ext4", "64Mi") + pod("p", "data", as(1000))); err != nil {
		return err
	}
	if err := errors.Join(s.ready("p"), s.want("p", "mkdir /data/d; echo 1 > /data/d/f; stat -c %g /data /data/d/f", "1000\n1000"), s.delete("pod", "p")); err != nil {
		return err
	}
	if err := s.apply(pod("q", "data", as(2000))); err != nil {
		return err
	}
	return errors.Join(s.ready("q"), s.want("q", "echo 2 >> /data/d/f; cat /data/d/f; stat -c %g /data /data/d/f", "1\n2\n2000\n2000"))
}

func subPath(s *space) error {
	with := func(name, dir string) string {
		return podWith(name, "persistentVolumeClaim: {claimName: data}", fmt.Sprintf("volumeMounts: [{name: data, mountPath: /data, subPath: %s}]", dir))
	}
	if err := s.apply(claim("data", "blockdriver-ext4", "64Mi") + with("p", "a/b") + with("q", "c")); err != nil {
		return err
	}
	if err := errors.Join(s.ready("p", "q"), s.want("p", "echo 1 > /data/f; ls /data", "f"), s.want("q", "ls /data", "")); err != nil {
		return err
	}
	if err := s.apply(pod("all", "data")); err != nil {
		return err
	}
	return errors.Join(s.ready("all"), s.want("all", "cat /data/a/b/f; ls -d /data/c", "1\n/data/c"))
}

func readOnly(s *space) error {
	if err := s.apply(claim("data", "blockdriver-ext4", "64Mi") + pod("p", "data")); err != nil {
		return err
	}
	if err := errors.Join(s.ready("p"), s.want("p", "echo 1 > /data/f; sync", ""), s.delete("pod", "p")); err != nil {
		return err
	}
	if err := s.apply(podWith("q", "persistentVolumeClaim: {claimName: data, readOnly: true}", "volumeMounts: [{name: data, mountPath: /data}]")); err != nil {
		return err
	}
	return errors.Join(s.ready("q"), s.want("q", "cat /data/f; ! touch /data/g 2>/dev/null; grep ' /data ' /proc/mounts | cut -d' ' -f4 | cut -d, -f1", "1\nro"))
}

func oncePod(s *space) error {
	c := strings.Replace(claim("data", "blockdriver-ext4", "64Mi"), "ReadWriteOnce", "ReadWriteOncePod", 1)
	if err := s.apply(c + pod("p", "data")); err != nil {
		return err
	}
	if err := errors.Join(s.ready("p"), s.apply(pod("q", "data"))); err != nil {
		return err
	}
	if err := s.event("q", "FailedScheduling", "ReadWriteOncePod"); err != nil {
		return err
	}
	return errors.Join(s.delete("pod", "p"), s.ready("q"))
}

func ephemeral(s *space) error {
	if err := s.apply(podWith("p", `ephemeral: {volumeClaimTemplate: {spec: {storageClassName: blockdriver-ext4, accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}}}`,
		"volumeMounts: [{name: data, mountPath: /data}]")); err != nil {
		return err
	}
	if err := errors.Join(s.ready("p"), s.want("p", "echo 1 > /data/f; cat /data/f", "1"), s.delete("pod", "p")); err != nil {
		return err
	}
	return s.wait("pvc/p-data", "delete", time.Minute)
}

// size of the file system at /data in KiB.
func (s *space) size(pod string) (int, error) {
	out, err := s.sh(pod, "df -Pk /data | tail -n 1 | tr -s ' ' | cut -d' ' -f2")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(out)
}

func (s *space) resize(claim, size string) error {
	_, err := s.kubectl("patch", "pvc", claim, "-p", `{"spec":{"resources":{"requests":{"storage":"`+size+`"}}}}`)
	return err
}

func expandInUse(s *space) error {
	if err := s.apply(claim("data", "blockdriver-xfs", "300Mi") + pod("p", "data")); err != nil {
		return err
	}
	if err := s.ready("p"); err != nil {
		return err
	}
	before, err := s.size("p")
	if err != nil {
		return err
	}
	if err := errors.Join(s.resize("data", "600Mi"), s.wait("pvc/data", "jsonpath={.status.capacity.storage}=600Mi", 3*time.Minute)); err != nil {
		return err
	}
	after, err := s.size("p")
	if err == nil && after < before+250<<10 {
		err = fmt.Errorf("the file system had %d KiB and has %d", before, after)
	}
	return err
}

func expandDetached(s *space) error {
	if err := s.apply(claim("data", "blockdriver-ext4", "64Mi") + pod("p", "data")); err != nil {
		return err
	}
	if err := errors.Join(s.ready("p"), s.want("p", "echo 1 > /data/f", ""), s.delete("pod", "p"), s.resize("data", "128Mi"), s.apply(pod("q", "data")), s.ready("q"),
		s.wait("pvc/data", "jsonpath={.status.capacity.storage}=128Mi", 3*time.Minute), s.want("q", "cat /data/f", "1")); err != nil {
		return err
	}
	after, err := s.size("q")
	if err == nil && after < 100<<10 {
		err = fmt.Errorf("the file system has %d KiB", after)
	}
	return err
}

func snapshotOf(name, claim string) string {
	return fmt.Sprintf(`---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %s}
spec: {volumeSnapshotClassName: blockdriver, source: {persistentVolumeClaimName: %s}}
`, name, claim)
}

func snapshot(s *space) error {
	if err := s.apply(claim("data", "blockdriver-ext4", "64Mi") + pod("p", "data")); err != nil {
		return err
	}
	if err := errors.Join(s.ready("p"), s.want("p", "echo before > /data/f; sync", ""), s.apply(snapshotOf("snap", "data")),
		s.wait("volumesnapshot/snap", "jsonpath={.status.readyToUse}=true", time.Minute), s.want("p", "echo after > /data/f; sync", "")); err != nil {
		return err
	}
	if err := s.apply(claim("restored", "blockdriver-ext4", "128Mi", from("snapshot.storage.k8s.io", "VolumeSnapshot", "snap")) + pod("r", "restored")); err != nil {
		return err
	}
	if err := errors.Join(s.ready("r"), s.want("r", "cat /data/f", "before"), s.want("p", "cat /data/f", "after")); err != nil {
		return err
	}
	size, err := s.size("r")
	if err == nil && size < 100<<10 {
		err = fmt.Errorf("the file system was not grown: %d KiB", size)
	}
	return errors.Join(err, s.delete("pod", "r"), s.delete("volumesnapshot", "snap"))
}

func clone(s *space) error {
	if err := s.apply(claim("data", "blockdriver-ext4", "64Mi") + pod("p", "data")); err != nil {
		return err
	}
	if err := errors.Join(s.ready("p"), s.want("p", "echo 1 > /data/f; sync", ""), s.delete("pod", "p"),
		s.apply(claim("copy", "blockdriver-ext4", "64Mi", from("", "PersistentVolumeClaim", "data"))+pod("c", "copy")+pod("q", "data"))); err != nil {
		return err
	}
	return errors.Join(s.ready("c", "q"), s.want("c", "cat /data/f; echo 2 > /data/f", "1"), s.want("q", "cat /data/f", "1"))
}

func groupSnapshot(s *space) error {
	if err := s.apply(claim("member1", "blockdriver-ext4", "64Mi") + pod("p1", "member1") + claim("member2", "blockdriver-xfs", "300Mi") + pod("p2", "member2")); err != nil {
		return err
	}
	if err := errors.Join(s.ready("p1", "p2"), s.want("p1", "echo 1 > /data/f; sync", ""), s.want("p2", "echo 2 > /data/f; sync", "")); err != nil {
		return err
	}
	if err := s.apply(`apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata: {name: both}
spec: {volumeGroupSnapshotClassName: blockdriver, source: {selector: {matchLabels: {group: member}}}}
`); err != nil {
		return err
	}
	if err := s.wait("volumegroupsnapshot/both", "jsonpath={.status.readyToUse}=true", 2*time.Minute); err != nil {
		return err
	}
	// The members' own status follows that of the group.
	of := map[string]string{}
	if err := s.poll(s.ctx, time.Minute, "snapshots of the group", func() error {
		out, err := s.kubectl("get", "volumesnapshots", "-o", `jsonpath={range .items[*]}{.spec.source.persistentVolumeClaimName} {.metadata.name} {.status.readyToUse}{"\n"}{end}`)
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) == 3 && f[2] == "true" {
				of[f[0]] = f[1]
			}
		}
		if of["member1"] == "" || of["member2"] == "" {
			return errors.New(out)
		}
		return nil
	}); err != nil {
		return err
	}
	source := func(claim string) string { return from("snapshot.storage.k8s.io", "VolumeSnapshot", of[claim]) }
	if err := s.apply(claim("restored1", "blockdriver-ext4", "64Mi", source("member1")) + pod("r1", "restored1") +
		claim("restored2", "blockdriver-xfs", "300Mi", source("member2")) + pod("r2", "restored2")); err != nil {
		return err
	}
	return errors.Join(s.ready("r1", "r2"), s.want("r1", "cat /data/f", "1"), s.want("r2", "cat /data/f", "2"),
		s.delete("pod", "r1", "r2"), s.delete("volumegroupsnapshot", "both"))
}

func attributes(s *space) error {
	if err := s.apply(claim("data", "blockdriver-ext4", "64Mi") + pod("p", "data")); err != nil {
		return err
	}
	if err := s.ready("p"); err != nil {
		return err
	}
	if _, err := s.kubectl("patch", "pvc", "data", "-p", `{"spec":{"volumeAttributesClassName":"blockdriver-fast"}}`); err != nil {
		return err
	}
	return s.wait("pvc/data", "jsonpath={.status.currentVolumeAttributesClassName}=blockdriver-fast", 2*time.Minute)
}

func exhausted(s *space) error {
	if err := s.apply(claim("data", "blockdriver-ext4", "1Ti") + pod("p", "data")); err != nil {
		return err
	}
	return s.event("p", "FailedScheduling", "did not have enough free storage")
}

// counter is a script that appends numbers to a file, with the time in seconds, each written to the
// disk before the next.
const counter = `cat > /data/run <<'EOF'
n=$(wc -l < /data/n 2>/dev/null || echo 0)
while :; do n=$((n+1)); read t _ < /proc/uptime; echo $n $t >> /data/n; sync /data/n || echo sync failed >> /dev/stderr; sleep 0.05; done
EOF
chmod +x /data/run`

// startCounter starts a pod that counts in a file; each number is on the disk before the
// next is written. more are further lines of the pod's spec.
func (s *space) startCounter(name, class string, more ...string) error {
	p := pod(name, name, more...)
	if err := errors.Join(s.apply(claim(name, class, "300Mi")+p), s.ready(name)); err != nil {
		return err
	}
	if _, err := s.sh(name, counter); err != nil {
		return err
	}
	if err := errors.Join(s.delete("pod", name), s.apply(p), s.ready(name)); err != nil {
		return err
	}
	_, err := s.counted(name, 5)
	return err
}

// counted waits until the counter is above a number, and checks that none is missing.
func (s *space) counted(pod string, above int) (n int, err error) {
	err = s.poll(s.ctx, 4*time.Minute, "counter", func() error {
		out, err := s.sh(pod, `awk '$1 != NR {print "line " NR ": " $0; exit 1} END {print NR}' /data/n`)
		if err != nil {
			return err
		}
		if n, err = strconv.Atoi(out); err == nil && n <= above {
			err = fmt.Errorf("stands at %d", n)
		}
		return err
	})
	return n, err
}

func (s *space) neverRestarted(pod string) error {
	n, err := s.get("pod/"+pod, "{.status.containerStatuses[0].restartCount}")
	if err == nil && n != "0" {
		err = fmt.Errorf("%s was restarted %s times", pod, n)
	}
	return err
}

func killDriver(s *space) error {
	if err := s.startCounter("p", "blockdriver-xfs"); err != nil {
		return err
	}
	const kills = 3
	for i := range kills {
		n, err := s.counted("p", 0)
		if err != nil {
			return err
		}
		if err := s.rig.kill("node1", "blockdriver", "-mode=all"); err != nil {
			return err
		}
		// Made while the driver starts.
		name := fmt.Sprintf("other%d", i)
		if err := errors.Join(s.apply(claim(name, "blockdriver-ext4", "64Mi")+pod(name, name)), s.ready(name), s.delete("pod", name)); err != nil {
			return err
		}
		if n, err = s.counted("p", n); err != nil {
			return err
		}
		s.note = fmt.Sprintf("%d kills, %d fsync'ed writes, none lost", kills, n)
	}
	return s.neverRestarted("p")
}

func restartKubelet(s *space) error {
	if err := s.startCounter("p", "blockdriver-ext4"); err != nil {
		return err
	}
	if err := s.rig.kill("node1", "kubelet", ""); err != nil {
		return err
	}
	if err := errors.Join(s.apply(claim("other", "blockdriver-ext4", "64Mi")+pod("q", "other")), s.ready("q")); err != nil {
		return err
	}
	n, err := s.counted("p", 5)
	if err != nil {
		return err
	}
	s.note = fmt.Sprintf("%d fsync'ed writes, none lost", n)
	return s.neverRestarted("p")
}

func deleteWhileDown(s *space) error {
	if err := s.apply(claim("data", "blockdriver-ext4", "64Mi") + pod("p", "data")); err != nil {
		return err
	}
	if err := s.ready("p"); err != nil {
		return err
	}
	volume, err := s.get("pvc/data", "{.spec.volumeName}")
	if err != nil {
		return err
	}
	driver := func(args ...string) error {
		_, err := s.rig.kubectl(s.ctx, append([]string{"-n", "blockdriver"}, args...)...)
		return err
	}
	selector := func(value string) error {
		return driver("patch", "daemonset", "blockdriver-node", "-p", `{"spec":{"template":{"spec":{"nodeSelector":{"absent":`+value+`}}}}}`)
	}
	if err := errors.Join(selector(`"true"`), driver("wait", "--for=delete", "pod", "-l", "app.kubernetes.io/component=node", "--timeout=2m")); err != nil {
		return err
	}
	if _, err := s.kubectl("delete", "pod/p", "pvc/data", "--wait=false"); err != nil {
		return err
	}
	err = s.poll(s.ctx, time.Minute, "kubelet", func() error {
		out, err := s.get("pod/p", "{.status.containerStatuses[0].state}")
		if err == nil && strings.Contains(out, "running") {
			err = errors.New(out)
		}
		return err
	})
	if err != nil && !strings.Contains(err.Error(), "NotFound") {
		return err
	}
	if _, err := s.rig.kubectl(s.ctx, "get", "pv", volume); err != nil {
		return fmt.Errorf("the volume is gone without the driver: %w", err)
	}
	if err := errors.Join(selector("null"), driver("rollout", "status", "daemonset/blockdriver-node", "--timeout=2m")); err != nil {
		return err
	}
	return errors.Join(s.wait("pod/p", "delete", 2*time.Minute), s.wait("pv/"+volume, "delete", 2*time.Minute))
}

func reboot(s *space) error {
	if err := s.startCounter("p", "blockdriver-ext4"); err != nil {
		return err
	}
	n, err := s.counted("p", 20)
	if err != nil {
		return err
	}
	// kubelet attaches a loop device of its own to that of a volume in block mode.
	if err := errors.Join(s.apply(claim("raw", "blockdriver-ext4", "64Mi", "volumeMode: Block")+
		podWith("raw", "persistentVolumeClaim: {claimName: raw}", "volumeDevices: [{name: data, devicePath: /dev/raw}]")), s.ready("raw")); err != nil {
		return err
	}
	loops, err := s.loopsOf(s.nodes["node1"])
	if err == nil && len(loops) < 3 {
		err = fmt.Errorf("two volumes, one of them in block mode, have the loop devices %v", loops)
	}
	if err != nil {
		return err
	}
	start := time.Now()
	if err := s.powerOff("node1"); err != nil {
		return err
	}
	if err := s.detached(loops); err != nil {
		return err
	}
	if err := s.boot(s.ctx, "node1"); err != nil {
		return err
	}
	more, err := s.counted("p", n+5)
	if err != nil {
		return err
	}
	s.note = fmt.Sprintf("the pod runs again after %.0f s; %d fsync'ed writes, none lost", time.Since(start).Seconds(), more)
	return nil
}

// detached waits until devices have ended, as those of a machine without power have.
func (s *space) detached(loops []loopDevice) error {
	return s.poll(s.ctx, 30*time.Second, "loop devices", func() error {
		all, err := loopDevices()
		if err != nil {
			return err
		}
		for _, d := range all {
			for _, l := range loops {
				if d.path == l.path && d.info.Inode == l.info.Inode && d.info.Device == l.info.Device {
					return fmt.Errorf("%s is attached", d.path)
				}
			}
		}
		return nil
	})
}

func removeInUse(s *space) error {
	if err := s.startCounter("p", "blockdriver-ext4"); err != nil {
		return err
	}
	n, err := s.counted("p", 5)
	if err != nil {
		return err
	}
	p := s.part
	if err := s.removeOverlay(s.ctx, p); err != nil {
		return err
	}
	if n, err = s.counted("p", n); err != nil {
		return fmt.Errorf("without the driver: %w", err)
	}
	if err := s.deploy(s.ctx, p); err != nil {
		return err
	}
	if _, err = s.counted("p", n); err != nil {
		return err
	}
	return errors.Join(s.neverRestarted("p"), s.delete("pod", "p"), s.apply(pod("q", "p")), s.ready("q"))
}
