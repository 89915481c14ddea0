#!/bin/busybox sh
# The first process of the guest: mounts the host's root read-only below an overlay in
# memory, and executes guest.sh in it.
/bin/busybox mkdir -p /proc /dev /host /cache /work /new /tmpfs
/bin/busybox --install -s /bin
mount -t proc proc /proc
for m in /modules/*.ko; do insmod $m; done
share() { mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=1048576,cache=loose $1 $2; }
share host /host
share cache /cache
share work /work
mount -t tmpfs -o size=75% tmpfs /tmpfs
mkdir /tmpfs/upper /tmpfs/work
mount -t overlay -o lowerdir=$(cat /lower):/host,upperdir=/tmpfs/upper,workdir=/tmpfs/work root /new
mkdir -p /new/mnt/work
mount --move /work /new/mnt/work
cp /guest.sh /new/mnt/guest.sh
umount /proc
exec switch_root /new /bin/sh /mnt/guest.sh
