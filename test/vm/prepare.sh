#!/bin/sh
# prepare.sh KERNEL CACHE DIR: downloads the guest's kernel and programs to CACHE unless
# they are there, and writes the files that it boots from to DIR. Nothing is installed:
# packages are downloaded by apt-get and unpacked.
set -eu
PATH=$PATH:/usr/sbin:/sbin
here=$(cd "$(dirname "$0")" && pwd)
kernel=$1 cache=$2 dir=$3

# Packages of the guest in addition to the programs of the host.
packages="nfs-kernel-server nfs-common kmod iptables cryptsetup-bin dmsetup iproute2 procps"

case $kernel in
6.1) image='linux-image-6\.1\.0-[0-9]+-amd64' ;;
6.12) image='linux-image-6\.12\.[0-9]+(\+deb[0-9]+)?-amd64' ;;
*) echo "no kernel $kernel: want 6.1 or 6.12" >&2; exit 2 ;;
esac

unpack() { # directory package...: atomic, so that an interrupted download is repeated
	into=$1
	shift
	debs=$(mktemp -d "$cache/debsXXXXXX")
	(cd "$debs" && apt-get download -qq -o APT::Sandbox::User=root "$@" >&2)
	mkdir -p "$debs/tree/usr/bin" "$debs/tree/usr/sbin" "$debs/tree/usr/lib" "$debs/tree/usr/lib64"
	for d in bin sbin lib lib64; do ln -s "usr/$d" "$debs/tree/$d"; done
	for deb in "$debs"/*.deb; do
		dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C "$debs/tree"
	done
	rm -rf "$into"
	mv "$debs/tree" "$into"
	rm -r "$debs"
}

linux=$cache/linux-$kernel
programs=$cache/programs-$(echo "$packages" | cksum | cut -d ' ' -f 1)
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
rm -rf "$cache"/debs??????
if [ ! -d "$programs" ] || [ ! -d "$linux" ]; then
	echo "downloading Linux $kernel and programs to $cache" >&2
	[ "$(id -u)" != 0 ] || apt-get update -qq >/dev/null
fi
if [ ! -d "$linux" ]; then
	name=$(apt-cache search --names-only "^$image\$" | awk '{print $1}' | sort -V | tail -n 1)
	[ -n "$name" ] || { echo "apt-get knows no package $image: Debian 12 with its security archive has one; without root, run 'apt-get update'" >&2; exit 1; }
	unpack "$linux" "$name"
fi
if [ ! -d "$programs" ]; then
	# Without packages that the host has: the guest uses those.
	missing=$(apt-get -s install --no-install-recommends $packages | awk '$1 == "Inst" {print $2}')
	# shellcheck disable=SC2086
	unpack "$programs" $missing busybox-static
fi

vmlinuz=$(echo "$linux"/boot/vmlinuz-*)
version=${vmlinuz##*/vmlinuz-}
[ -e "$linux/lib/modules/$version/modules.dep" ] || depmod -b "$linux" "$version"
ln -s "$vmlinuz" "$dir/vmlinuz"

# The initramfs: busybox, and the modules needed to mount the host's root, in order.
mkdir -p "$dir/initramfs/bin" "$dir/initramfs/modules"
cp "$programs/bin/busybox" "$dir/initramfs/bin/busybox"
install "$here/init.sh" "$dir/initramfs/init"
cp "$here/guest.sh" "$dir/initramfs/guest.sh"
echo "/cache/${linux##*/}:/cache/${programs##*/}" >"$dir/initramfs/lower"
n=100
modprobe -d "$linux" -S "$version" --show-depends -a virtio_pci virtio_console 9pnet_virtio 9p overlay |
	awk '$1 == "insmod" && !seen[$2]++ {print $2}' | while read -r module; do
	n=$((n + 1))
	to=$dir/initramfs/modules/$n.ko
	case $module in
	*.xz) xz -dc "$module" >"$to" ;;
	*) cp "$module" "$to" ;;
	esac
done
(cd "$dir/initramfs" && find . | bin/busybox cpio -o -H newc 2>/dev/null) >"$dir/initrd"
rm -r "$dir/initramfs"
