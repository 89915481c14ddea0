#!/bin/sh
# Installs the programs that the demo and the tests run, if it is root on Debian or a
# derivative. Otherwise it prints the command to run.
set -eu
PATH=$PATH:/usr/sbin:/sbin

packages=
need() { # program package
	command -v "$1" >/dev/null 2>&1 && return
	case " $packages " in *" $2 "*) ;; *) packages="$packages $2" ;; esac
}
need mke2fs e2fsprogs
need e2fsck e2fsprogs
need resize2fs e2fsprogs
need mkfs.xfs xfsprogs
need xfs_growfs xfsprogs
need blkid util-linux
for what in "$@"; do
	case $what in
	test)
		need mkfs.btrfs btrfs-progs
		need btrfs btrfs-progs
		need setpriv util-linux
		need cryptsetup cryptsetup-bin
		;;
	cluster)
		need ip iproute2
		;;
	vm)
		need qemu-system-x86_64 qemu-system-x86
		need modprobe kmod
		need xz xz-utils
		need ps procps
		;;
	esac
done

[ -n "$packages" ] || exit 0
install="apt-get install -y --no-install-recommends$packages"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
	echo "installing$packages"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq >/dev/null
	$install -qq >/dev/null
	exit 0
fi
echo "Missing packages:$packages. On Debian or Ubuntu, run:" >&2
echo "    sudo apt-get update && sudo $install" >&2
exit 1
