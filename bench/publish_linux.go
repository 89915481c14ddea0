package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// serve is the process of a driver: it mounts a staged volume and publishes it many times, in the
// mount namespace that it has for itself, and then serves.
func serve(args []string) error {
	name, socket, dir := args[0], args[1], args[2]
	mounts, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	if err := unix.Mount("bench", dir, "tmpfs", 0, ""); err != nil {
		return err
	}
	staging, pods := filepath.Join(dir, "staging"), filepath.Join(dir, "pods")
	for _, d := range []string{staging, pods} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("volume", staging, "tmpfs", 0, ""); err != nil {
		return err
	}
	for i := range mounts {
		target := filepath.Join(pods, fmt.Sprint("other-", i))
		if err := os.Mkdir(target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(staging, target, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return serveDriver(name, socket)
}

// process is a driver that runs.
type process struct {
	stop    func()
	dir     string // in which its mount namespace has the volume
	clients []csi.NodeClient
}

const maxClients = 16

// start starts the driver, in whose mount namespace the volume is published that many times.
func (b *bench) start(name string, mounts int) (_ *process, err error) {
	dir, err := os.MkdirTemp(b.dir, "d")
	if err != nil {
		return nil, err
	}
	p := &process{dir: filepath.Join(dir, "w")}
	if err := os.Mkdir(p.dir, 0o755); err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "s")
	c := self("serve", name, socket, p.dir, fmt.Sprint(mounts))
	if err := c.Start(); err != nil {
		return nil, err
	}
	var conns []*grpc.ClientConn
	p.stop = func() {
		for _, conn := range conns {
			conn.Close()
		}
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait()
	}
	defer func() {
		if err != nil {
			p.stop()
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range maxClients {
		conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second}))
		if err != nil {
			return nil, err
		}
		conns = append(conns, conn)
		client := csi.NewNodeClient(conn)
		if _, err := client.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{}, grpc.WaitForReady(true)); err != nil {
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
		p.clients = append(p.clients, client)
	}
	return p, nil
}

// pairs publishes and unpublishes a volume n times from that many clients, each with a target of
// its own.
func (p *process) pairs(clients int, readOnly bool) func(n int) (time.Duration, error) {
	return func(n int) (time.Duration, error) {
		var wg sync.WaitGroup
		errs := make(chan error, clients)
		start := time.Now()
		for i := range clients {
			share := n / clients
			if i < n%clients {
				share++
			}
			wg.Go(func() {
				for range share {
					if err := p.pair(i, readOnly); err != nil {
						errs <- err
						return
					}
				}
			})
		}
		wg.Wait()
		spent := time.Since(start)
		select {
		case err := <-errs:
			return spent, err
		default:
			return spent, nil
		}
	}
}

func (p *process) pair(client int, readOnly bool) error {
	id, target := fmt.Sprint("volume-", client), fmt.Sprint(p.dir, "/pods/target-", client)
	if _, err := p.clients[client].NodePublishVolume(context.Background(), &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: p.dir + "/staging", TargetPath: target, Readonly: readOnly,
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "tmpfs"}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		},
		VolumeContext: map[string]string{"csi.storage.k8s.io/pod.name": "pod", "csi.storage.k8s.io/pod.namespace": "default"},
	}); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	_, err := p.clients[client].NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	if err != nil {
		err = fmt.Errorf("unpublish: %w", err)
	}
	return err
}

// fleet is a process of each driver.
type fleet []*process

func (b *bench) startFleet(mounts int) (fleet, error) {
	var f fleet
	for _, d := range drivers {
		p, err := b.start(d.name, mounts)
		if err != nil {
			f.stop()
			return nil, err
		}
		f = append(f, p)
	}
	return f, nil
}

func (f fleet) stop() {
	for _, p := range f {
		p.stop()
	}
}

func (f fleet) ways(clients int, readOnly bool) []way {
	var ways []way
	for i, p := range f {
		ways = append(ways, way{drivers[i].name, p.pairs(clients, readOnly)})
	}
	return ways
}

func measurePublish(b *bench) error {
	text := "A pair of NodePublishVolume and NodeUnpublishVolume over a unix socket, of a staged tmpfs; the drivers are processes of their own. " +
		"Times per pair, and in parentheses how many times that of the limit it is: median, lowest and highest of the rounds.\n"
	var names []string
	for _, d := range drivers {
		names = append(names, d.name)
		text += "\n- " + d.name + ": " + d.about
	}
	t := b.newTable("publish", "Publish and unpublish over the socket", text, false, names...)
	many, clients := []int{10, 1000, 10000}, []int{1, maxClients}
	if b.short {
		many = []int{10}
	}
	for _, mounts := range many {
		f, err := b.startFleet(mounts)
		if err != nil {
			return err
		}
		for _, c := range clients {
			for _, readOnly := range []bool{false, true} {
				if b.short && readOnly {
					continue
				}
				if err == nil {
					err = b.add(t, fmt.Sprintf("%s, %d mounts, %s", countClients(c), mounts, access(readOnly)), float64(mounts), f.ways(c, readOnly))
				}
			}
		}
		if mounts == 10 && !b.short && err == nil {
			byClients := b.newTable("clients", "Clients", "The same pair with 10 mounts, read-write, by the number of clients.", false, names...)
			for c := 1; c <= maxClients && err == nil; c *= 2 {
				err = b.add(byClients, countClients(c), float64(c), f.ways(c, false))
			}
		}
		f.stop()
		if err != nil {
			return err
		}
	}
	return b.measureGrowth()
}

// measureGrowth compares each driver with itself, among few and many mounts.
func (b *bench) measureGrowth() error {
	sizes, compared := []int{10, 1, 100, 1000, 10000}, []string{limitDriver, utilsDriver, fullDriver}
	if b.short {
		sizes, compared = []int{10, 10000}, []string{fullDriver}
	}
	var names []string
	for _, mounts := range sizes {
		names = append(names, fmt.Sprintf("%d mounts", mounts))
	}
	t := b.newTable("growth", "Growth with the number of mounts", "", false, names...)
	for _, name := range compared {
		var ways []way
		var all fleet
		for i, mounts := range sizes {
			p, err := b.start(name, mounts)
			if err != nil {
				all.stop()
				return err
			}
			all = append(all, p)
			ways = append(ways, way{names[i], p.pairs(1, false)})
		}
		err := b.add(t, name, 0, ways)
		all.stop()
		if err != nil {
			return err
		}
	}
	t.text = "The same pair of one client in mount namespaces with that many other publications in the directory of the target; ratios to 10 mounts. Time grows with the number of mounts to the power of"
	for _, r := range t.rows {
		var x, y []float64
		for i, mounts := range sizes {
			x, y = append(x, float64(mounts)), append(y, r.cells[i].micros)
		}
		t.text += fmt.Sprintf(" %.3f (%s)", exponent(x, y), r.name)
	}
	t.text += ", fitted: 0 does not grow, 1 grows in proportion."
	return nil
}

func countClients(n int) string {
	if n == 1 {
		return "1 client"
	}
	return fmt.Sprint(n, " clients")
}

func access(readOnly bool) string {
	if readOnly {
		return "read-only"
	}
	return "read-write"
}
