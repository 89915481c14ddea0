#!/bin/sh
# Runs in the guest's root: sets up mounts, network and modules, and starts a shell on
# each of the two ports over which the host sends commands: one to run tests, one to
# collect the state when they hang. With csikit.shell on the kernel's command line it
# starts a shell on the console.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/scratch TERM=linux
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /scratch
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o mode=1777,size=75% tmpfs /scratch # the sources may be in /tmp
mount -t tmpfs -o mode=755 tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /run/lock /run/rpcbind
hostname csikit-vm
ip link set lo up
# What the packages' install scripts would have created.
touch /etc/exports /etc/nfs.conf
id _rpc >/dev/null 2>&1 || echo '_rpc:x:911:65534::/run/rpcbind:/usr/sbin/nologin' >>/etc/passwd
id statd >/dev/null 2>&1 || echo 'statd:x:912:65534::/var/lib/nfs:/usr/sbin/nologin' >>/etc/passwd
for program in iptables ip6tables; do
	command -v $program >/dev/null || ln -s $program-nft /usr/sbin/$program
done
modprobe -a loop ext4 xfs btrfs fuse
cd /
case $(cat /proc/cmdline) in
*csikit.shell*)
	echo "Linux $(uname -r) after $(cut -d' ' -f1 /proc/uptime) s. The root is an overlay of the host's, with changes in memory. Ctrl-D exits."
	busybox setsid busybox cttyhack bash -i
	;;
*)
	tests=$(echo /dev/vport*p1) debug=$(echo /dev/vport*p2)
	sh <>"$debug" >&0 2>&0 & # a port can only be opened once
	sh <>"$tests" >&0 2>&0
	;;
esac
echo o >/proc/sysrq-trigger
sleep 60
