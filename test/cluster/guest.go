//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// A guest is a node that is a virtual machine, in emulation: its kernel is one of Debian, with what
// that of this machine may lack. As with test/vm, which prepares what it boots from, its
// root is this machine's, read-only below an overlay in memory. Its directory in the rig's is
// shared with it, so that its logs are there.

// guestKernel is one that test/vm knows.
const guestKernel = "6.12"

// nfsAddress is what the README of nfsdriver has as the address of the server; nfsName is that of
// its samples. The first guest is that server as well.
const (
	nfsAddress = "192.0.2.7"
	nfsName    = "nas.example.com"
)

// A guestConfig says where test/vm has put what guests boot from, and its cache of packages.
type guestConfig struct{ Boot, Cache string }

// prepareGuests makes test/vm download and write what guests boot from.
func prepareGuests(ctx context.Context, dir, cache string) (guestConfig, error) {
	c := guestConfig{Boot: filepath.Join(dir, "vm"), Cache: filepath.Join(filepath.Dir(cache), "csikit-vm")}
	if err := os.Mkdir(c.Boot, 0o755); err != nil {
		return c, err
	}
	for _, args := range [][]string{{"../../hack/tools.sh", "vm"}, {"../vm/prepare.sh", guestKernel, c.Cache, c.Boot}} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return c, fmt.Errorf("%s: %w", args[0], err)
		}
	}
	return c, nil
}

// startGuest starts a virtual machine and, in it, the first process of a node. Its output
// goes to console.
func (r *rig) startGuest(n *node, argument []byte, console *os.File) (err error) {
	for _, args := range []string{
		"tuntap add dev " + n.Name + " mode tap",
		"link set " + n.Name + " master br0 up",
	} {
		if err := r.ip(args); err != nil {
			return err
		}
	}
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "line"), os.NewFile(uintptr(fds[1]), "line")
	defer ours.Close()
	defer theirs.Close()
	line, err := net.FileConn(ours)
	if err != nil {
		return err
	}
	mac := fmt.Sprintf("52:54:00:00:00:%02x", net.ParseIP(n.Address).To4()[3])
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-accel", "tcg", "-cpu", "max", "-m", "4G", // one CPU, as in test/vm
		"-kernel", filepath.Join(r.guests.Boot, "vmlinuz"), "-initrd", filepath.Join(r.guests.Boot, "initrd"),
		"-append", "console=ttyS0 panic=-1 quiet",
		"-serial", "file:" + filepath.Join(n.Dir, "kernel.log"),
		"-netdev", "tap,id=net,ifname=" + n.Name + ",script=no,downscript=no", "-device", "virtio-net-pci,netdev=net,mac=" + mac,
		"-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng",
		"-device", "virtio-serial-pci",
		"-chardev", "socket,id=line,fd=3", "-device", "virtserialport,chardev=line,nr=1",
		"-chardev", "null,id=debug", "-device", "virtserialport,chardev=debug,nr=2",
		"-virtfs", "local,mount_tag=node,path=" + n.Dir + ",security_model=none,multidevs=remap",
	}
	for tag, path := range map[string]string{"host": "/", "cache": r.guests.Cache, "work": r.guests.Boot} {
		args = append(args, "-virtfs", "local,mount_tag="+tag+",path="+path+",security_model=none,readonly=on,multidevs=remap")
	}
	n.cmd = exec.Command("qemu-system-x86_64", args...)
	n.cmd.Stderr = console
	n.cmd.ExtraFiles = []*os.File{theirs}
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := n.cmd.Start(); err != nil {
		return errors.Join(err, line.Close())
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	command := fmt.Sprintf("exec %s node %s </dev/null\n", program, quote(string(argument)))
	if _, err := io.WriteString(line, command); err != nil {
		return err
	}
	output, err := os.OpenFile(console.Name(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	go func() {
		io.Copy(output, line) // until the guest ends
		output.Close()
		line.Close()
	}()
	return nil
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// enterGuest makes what is a guest's own: modules, and on the disk of its memory all but logs.
func (c nodeConfig) enterGuest() error {
	script := `
modprobe -a virtio_net veth bridge nfs nfsd
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 node "$1"
mkdir -p "$1/var"
mount -t tmpfs -o size=75%,mode=755 tmpfs "$1/var"
echo "$2 $3" >>/etc/hosts
`
	return c.script(script, c.Dir, nfsAddress, nfsName)
}

// serveNFS starts the kernel's NFS server with an ext4 of its own.
func (c nodeConfig) serveNFS() error {
	return c.script(`
mkdir -p /export /run/rpcbind /run/lock /run/rpc_pipefs
cd /var/lib && mkdir -p nfs/sm nfs/sm.bak nfs/v4recovery nfs/nfsdcld nfs/rpc_pipefs
touch nfs/etab nfs/rmtab nfs/state
printf '[exports]\nrootdir=/export\n' >/etc/nfs.conf
truncate -s 16G /scratch/nfs
mke2fs -q -F -t ext4 /scratch/nfs
mount -o loop /scratch/nfs /export
mkdir -p /export/srv/volumes /export/srv/media /export/srv/shared
echo hello >/export/srv/media/file
mount -t nfsd nfsd /proc/fs/nfsd
mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs
mount -t rpc_pipefs rpc_pipefs nfs/rpc_pipefs
for share in volumes media shared; do echo "/srv/$share *(rw,no_root_squash,no_subtree_check)"; done >/etc/exports
rpcbind -w
rpc.mountd
nfsdcld
rpc.nfsd --grace-time 10 --lease-time 10 4
exportfs -a
`)
}

// script runs one with output to the console.
func (c nodeConfig) script(script string, args ...string) error {
	cmd := exec.Command("sh", append([]string{"-exc", script, "sh"}, args...)...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = os.Stdout, io.MultiWriter(os.Stdout, &output)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, output.Bytes())
	}
	return nil
}
