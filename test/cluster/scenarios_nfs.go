//go:build linux

package main

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

func nfsRegistered(s *space) error {
	return s.poll(s.ctx, time.Minute, "CSINode", func() error {
		out, err := s.kubectl("get", "csinode", "node1", "-o", "jsonpath={.spec.drivers[*].name}")
		if err == nil && !strings.Contains(out, "nfs.csikit.dev") {
			err = errors.New("has " + out)
		}
		return err
	})
}

// nfsUnreachable: the server of the class as shipped does not exist.
func nfsUnreachable(s *space) error {
	if err := s.apply(claim("data", "nfsdriver", "64Mi")); err != nil {
		return err
	}
	return s.event("data", "ProvisioningFailed", "nas.example.com")
}

// shared is a claim for pods on any node.
func shared(name string, more ...string) string {
	return strings.Replace(claim(name, "nfsdriver", "64Mi", more...), "ReadWriteOnce", "ReadWriteMany", 1)
}

// written starts a pod that has written a line to a new volume.
func (s *space) written() error {
	return errors.Join(s.apply(shared("data")+pod("p", "data", on("vm1"))), s.ready("p"), s.want("p", "echo 1 > /data/f; sync /data/f; cat /data/f", "1"))
}

func nfsShared(s *space) error {
	start := time.Now()
	if err := s.apply(shared("data") + pod("p", "data", on("vm1")) + pod("q", "data", on("vm2"))); err != nil {
		return err
	}
	if err := s.ready("p", "q"); err != nil {
		return err
	}
	s.note = fmt.Sprintf("both pods ready after %.0f s", time.Since(start).Seconds())
	return errors.Join(
		s.want("p", "grep -o ' /data nfs4' /proc/mounts; echo 1 > /data/p; sync /data/p", "/data nfs4"),
		s.want("q", "cat /data/p; echo 2 > /data/q; sync /data/q", "1"),
		s.want("p", "cat /data/q", "2"),
	)
}

func nfsPods(s *space) error {
	const as = "securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 3000}"
	if err := s.apply(shared("data") + pod("p", "data", as, on("vm1"))); err != nil {
		return err
	}
	if err := errors.Join(s.ready("p"), s.want("p", "stat -c %g /data; mkdir /data/d; echo 1 > /data/d/f", "3000")); err != nil {
		return err
	}
	if err := s.apply(podWith("q", "persistentVolumeClaim: {claimName: data, readOnly: true}", "volumeMounts: [{name: data, mountPath: /data, subPath: d}]", on("vm2"))); err != nil {
		return err
	}
	return errors.Join(s.ready("q"), s.want("q", "cat /data/f; ! touch /data/g 2>/dev/null; ls /data", "1\nf"))
}

func nfsExpand(s *space) error {
	if err := s.written(); err != nil {
		return err
	}
	return errors.Join(s.resize("data", "128Mi"), s.wait("pvc/data", "jsonpath={.status.capacity.storage}=128Mi", 3*time.Minute), s.want("p", "cat /data/f", "1"))
}

func nfsSnapshot(s *space) error {
	if err := s.written(); err != nil {
		return err
	}
	if err := errors.Join(s.apply(strings.ReplaceAll(snapshotOf("snap", "data"), "blockdriver", "nfsdriver")),
		s.wait("volumesnapshot/snap", "jsonpath={.status.readyToUse}=true", 2*time.Minute), s.want("p", "echo 2 > /data/f; sync /data/f", "")); err != nil {
		return err
	}
	if err := s.apply(shared("restored", from("snapshot.storage.k8s.io", "VolumeSnapshot", "snap")) + pod("r", "restored", on("vm2"))); err != nil {
		return err
	}
	return errors.Join(s.ready("r"), s.want("r", "cat /data/f", "1"), s.want("p", "cat /data/f", "2"), s.delete("pod", "r"), s.delete("volumesnapshot", "snap"))
}

func nfsClone(s *space) error {
	if err := s.written(); err != nil {
		return err
	}
	if err := s.apply(shared("copy", from("", "PersistentVolumeClaim", "data")) + pod("c", "copy", on("vm2"))); err != nil {
		return err
	}
	return errors.Join(s.ready("c"), s.want("c", "cat /data/f; echo 2 > /data/f", "1"), s.want("p", "cat /data/f", "1"))
}

// nfsDeleted: the server has the directory of a volume as long as its claim, and for good that
// of the class that archives.
func nfsDeleted(s *space) error {
	if err := s.apply(shared("data") + strings.ReplaceAll(shared("kept"), "nfsdriver", "nfsdriver-archive")); err != nil {
		return err
	}
	server, err := s.podOfHost(s.server)
	if err != nil {
		return err
	}
	const enter = "cd /proc/1/root && cd export/srv/volumes && " // of the guest, whose first process is seen here
	for claim, after := range map[string]string{"data": "", "kept": "archived-"} {
		if err := s.bound(claim); err != nil {
			return err
		}
		volume, err := s.get("pvc/"+claim, "{.spec.volumeName}")
		if err != nil {
			return err
		}
		if err := errors.Join(s.want(server, enter+"ls -d "+volume, volume), s.delete("pvc", claim), s.wait("pv/"+volume, "delete", 2*time.Minute)); err != nil {
			return err
		}
		if after != "" {
			after += volume
		}
		if err := s.want(server, enter+"{ ls -d *"+volume+" 2>/dev/null || true; }", after); err != nil {
			return err
		}
	}
	return nil
}

// nfsKill: killing the driver on a node and the controller harms no pod.
func nfsKill(s *space) error {
	if err := s.startCounter("p", "nfsdriver"); err != nil {
		return err
	}
	for node := range s.nodes {
		n, err := s.counted("p", 0)
		if err != nil {
			return err
		}
		host, err := s.podOfHost(node)
		if err != nil {
			return err
		}
		name := "other-" + node
		if err := errors.Join(s.want(host, "kill -9 $(pidof nfsdriver)", ""), s.apply(shared(name)+pod(name, name, on(node))), s.ready(name), s.delete("pod", name)); err != nil {
			return err
		}
		if n, err = s.counted("p", n); err != nil {
			return err
		}
		s.note = fmt.Sprintf("%d kills, %d fsync'ed writes, none lost", len(s.nodes), n)
	}
	return s.neverRestarted("p")
}

// nfsInline follows the README: the CSIDriver is deleted and created with the component while
// a volume is in use, and then the other way round.
func nfsInline(s *space) error {
	if err := s.written(); err != nil {
		return err
	}
	plain := s.part
	plain.readme, plain.components = "", []string{}
	inline := plain
	inline.components = []string{"inline-volumes"}
	set := func(p part) error {
		if _, err := s.rig.kubectl(s.ctx, "delete", "csidriver", "nfs.csikit.dev"); err != nil {
			return err
		}
		if err := s.rig.apply(s.ctx, p); err != nil {
			return err
		}
		_, err := s.rig.kubectl(s.ctx, "-n", "nfsdriver", "rollout", "status", "--timeout=5m", "daemonset/nfsdriver-node")
		return err
	}
	volume := func(share string) string {
		return fmt.Sprintf("csi: {driver: nfs.csikit.dev, volumeAttributes: {server: %s, share: %s}}", nfsName, share)
	}
	mounts := "volumeMounts: [{name: data, mountPath: /data}]"
	if err := set(inline); err != nil {
		return err
	}
	if err := s.apply(podWith("i", volume("/srv/shared"), mounts, on("vm1")) + podWith("j", volume("/srv/shared"), mounts, on("vm2")) + podWith("refused", volume("/srv/volumes"), mounts)); err != nil {
		return err
	}
	return errors.Join(
		s.ready("i", "j"), s.want("i", "echo 1 > /data/inline; sync /data/inline", ""), s.want("j", "cat /data/inline; rm /data/inline", "1"),
		s.event("refused", "FailedMount", "/srv/volumes"),
		s.want("p", "cat /data/f", "1"), s.delete("pod", "i", "j", "refused"),
		set(plain), s.want("p", "echo 2 > /data/f; cat /data/f", "2"),
	)
}

// nfsSamples: every sample has come up, and the copies have the data.
func nfsSamples(in *space) error {
	reader := *in
	s := &reader
	s.name = "default"
	if _, err := s.kubectl("rollout", "status", "--timeout=5m", "deployment/writers"); err != nil {
		return err
	}
	for _, claim := range []string{"shared", "restored", "cloned", "existing"} {
		if err := s.bound(claim); err != nil {
			return err
		}
		if err := s.apply(pod("sees-"+claim, claim)); err != nil {
			return err
		}
	}
	return errors.Join(
		s.ready("sees-shared", "sees-restored", "sees-cloned", "sees-existing"),
		s.want("sees-shared", "ls /data | grep -c writers", "3"),
		s.want("sees-restored", "test -d /data && echo ok", "ok"),
		s.want("sees-existing", "cat /data/file; ! touch /data/x 2>/dev/null", "hello"),
		s.delete("pod", "sees-shared", "sees-restored", "sees-cloned", "sees-existing"),
	)
}
