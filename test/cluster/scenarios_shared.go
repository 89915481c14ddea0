//go:build linux

package main

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

func on(node string) string { return "nodeSelector: {kubernetes.io/hostname: " + node + "}" }

func move(s *space) error {
	if err := s.apply(claim("data", "blockdriver-ext4", "64Mi") + pod("p", "data", on("node1"))); err != nil {
		return err
	}
	if err := errors.Join(s.ready("p"), s.want("p", "echo 1 > /data/f", "")); err != nil {
		return err
	}
	// While the volume is on one node, it is never attached to the other.
	if err := errors.Join(s.apply(pod("q", "data", on("node2"))), s.event("q", "FailedAttachVolume", "Multi-Attach")); err != nil {
		return err
	}
	start := time.Now()
	if err := errors.Join(s.delete("pod", "p"), s.ready("q"), s.want("q", "cat /data/f", "1")); err != nil {
		return err
	}
	s.note = fmt.Sprintf("ready on the other node after %.1f s", time.Since(start).Seconds())
	return nil
}

// driverOn returns the pod of the driver on a node.
func (s *space) driverOn(node string) (string, error) {
	return s.rig.kubectl(s.ctx, "-n", "blockdriver", "get", "pods", "-l", "app.kubernetes.io/component=node", "--field-selector=spec.nodeName="+node,
		"-o", "jsonpath={.items[0].metadata.name}")
}

// startupTaint: the driver that starts on a tainted node removes the taint, and no other one.
func startupTaint(s *space) error {
	driver, err := s.driverOn("node2")
	if err != nil {
		return err
	}
	const other = "example.com/other=x:PreferNoSchedule"
	if _, err := s.kubectl("taint", "node", "node2", "block.csikit.dev/agent-not-ready:NoExecute", other); err != nil {
		return err
	}
	start := time.Now()
	if _, err := s.rig.kubectl(s.ctx, "-n", "blockdriver", "delete", "pod", driver); err != nil {
		return err
	}
	err = s.poll(s.ctx, 2*time.Minute, "taints", func() error {
		out, err := s.get("node/node2", "{.spec.taints[*].key}")
		if err == nil && strings.Contains(out, "agent-not-ready") {
			err = errors.New(out)
		}
		if err == nil && !strings.Contains(out, "example.com/other") {
			err = final{fmt.Errorf("the other taint is gone: %q", out)}
		}
		return err
	})
	s.note = fmt.Sprintf("gone %.0f s after the driver was deleted", time.Since(start).Seconds())
	_, untaint := s.kubectl("taint", "node", "node2", other+"-")
	return errors.Join(err, untaint, s.apply(claim("data", "blockdriver-ext4", "64Mi")+pod("p", "data", on("node2"))), s.ready("p"))
}

// drain: on a node that is drained, the driver stays until its volumes are detached.
func drain(s *space) error {
	driver, err := s.driverOn("node2")
	if err != nil {
		return err
	}
	if err := errors.Join(s.apply(claim("data", "blockdriver-ext4", "64Mi")+pod("p", "data", on("node2"))), s.ready("p")); err != nil {
		return err
	}
	volume, err := s.get("pvc/data", "{.spec.volumeName}")
	if err != nil {
		return err
	}
	if _, err := s.kubectl("cordon", "node2"); err != nil {
		return err
	}
	start := time.Now()
	if _, err := s.rig.kubectl(s.ctx, "-n", "blockdriver", "delete", "pod", driver, "--wait=false"); err != nil {
		return err
	}
	_, err = s.kubectl("delete", "pod", "p", "--wait=false")
	if err == nil {
		err = s.poll(s.ctx, time.Minute, "VolumeAttachment", func() error {
			// In this order: the driver has to be there for as long as the attachment is.
			attached, err := s.kubectl("get", "volumeattachments", "-o", `jsonpath={.items[?(@.spec.source.persistentVolumeName=="`+volume+`")].metadata.name}`)
			if err != nil || attached == "" {
				return err
			}
			if _, err := s.rig.kubectl(s.ctx, "-n", "blockdriver", "get", "pod", driver); err != nil {
				if again, e := s.kubectl("get", "volumeattachments", "-o", "name"); e == nil && strings.Contains(again, attached) {
					return final{fmt.Errorf("the driver ended before its volume was detached: %w", err)}
				}
			}
			return errors.New(attached)
		})
	}
	s.note = fmt.Sprintf("detached after %.1f s", time.Since(start).Seconds())
	if _, e := s.rig.kubectl(s.ctx, "-n", "blockdriver", "wait", "--for=delete", "pod/"+driver, "--timeout=30s"); e != nil {
		err = errors.Join(err, fmt.Errorf("the driver stays after the last volume was detached: %w", e))
	}
	_, uncordon := s.kubectl("uncordon", "node2")
	_, rollout := s.rig.kubectl(s.ctx, "-n", "blockdriver", "rollout", "status", "--timeout=2m", "daemonset/blockdriver-node")
	return errors.Join(err, uncordon, rollout)
}

func killLeader(s *space) error {
	lease, err := s.rig.kubectl(s.ctx, "-n", "blockdriver", "get", "lease", "block-csikit-dev", "-o", "jsonpath={.spec.holderIdentity}")
	if err != nil {
		return err
	}
	pods, err := s.rig.kubectl(s.ctx, "-n", "blockdriver", "get", "pods", "-l", "app.kubernetes.io/component=controller", "-o", "jsonpath={.items[*].metadata.name}")
	if err != nil {
		return err
	}
	leader := ""
	for _, p := range strings.Fields(pods) {
		if strings.Contains(lease, p) {
			leader = p
		}
	}
	if leader == "" {
		return fmt.Errorf("the leader %q is none of %q", lease, pods)
	}
	start := time.Now()
	if _, err := s.rig.kubectl(s.ctx, "-n", "blockdriver", "delete", "pod", leader, "--grace-period=0", "--force"); err != nil {
		return err
	}
	if err := errors.Join(s.apply(claim("data", "blockdriver-ext4", "64Mi")+pod("p", "data")), s.bound("data")); err != nil {
		return err
	}
	s.note = fmt.Sprintf("claim bound after %.1f s", time.Since(start).Seconds())
	if err := s.ready("p"); err != nil {
		return err
	}
	s.note += fmt.Sprintf(", pod ready after %.1f s", time.Since(start).Seconds())
	_, err = s.rig.kubectl(s.ctx, "-n", "blockdriver", "rollout", "status", "deployment/blockdriver-controller", "--timeout=2m")
	return err
}

func outOfService(s *space) error {
	if err := s.apply(claim("data", "blockdriver-ext4", "64Mi") + pod("p", "data", on("node2"))); err != nil {
		return err
	}
	if err := errors.Join(s.ready("p"), s.want("p", "echo 1 > /data/f; sync", "")); err != nil {
		return err
	}
	start := time.Now()
	if err := s.powerOff("node2"); err != nil {
		return err
	}
	if _, err := s.kubectl("wait", "--for=condition=Ready=Unknown", "node/node2", "--timeout=2m"); err != nil {
		return err
	}
	taint := "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
	if _, err := s.kubectl("taint", "node", "node2", taint); err != nil {
		return err
	}
	if err := errors.Join(s.wait("pod/p", "delete", 2*time.Minute), s.apply(pod("q", "data", on("node1"))), s.ready("q"), s.want("q", "cat /data/f", "1")); err != nil {
		return err
	}
	s.note = fmt.Sprintf("ready on the other node %.0f s after power was lost", time.Since(start).Seconds())
	if err := s.boot(s.ctx, "node2"); err != nil {
		return err
	}
	_, err := s.kubectl("taint", "node", "node2", taint+"-")
	return err
}
