#!/bin/sh
# Checks the mutant of examples/blockdriver in $OUT with csicheck ($CSICHECK), with what the
# driver can do at most: two pools, which share blocks, in two places, and a second node. The
# driver without a mutation, in $BASE, prepares the pools. The last line is the rule that failed.
set -u
PATH=$PATH:/usr/sbin:/sbin
cd "$DIR" || exit 100
rack=topology.block.csikit.dev/rack
pools=
prepare() {
	for pool in r1 r2; do
		truncate -s 4G $pool.disk && mkfs.xfs -q $pool.disk && mkdir $pool && mount -o loop $pool.disk $pool || return 1
		pools="$pools -pool $pool=$DIR/$pool,$rack=$pool"
	done
	"$BASE/driver" init $pools || return 1
	# A node is known to the pools once its plugin has run.
	"$BASE/driver" $pools -mode node -endpoint "unix://$DIR/other.sock" -node-id other -topology $rack=r1 2>other.log &
	while ! grep -q starting other.log; do
		kill -0 $! || return 1
		sleep 0.02
	done
	kill $! && wait $!
}
prepare || exit 100
check() {
	"$CSICHECK" -endpoint "unix://$DIR/csi.sock" \
		-start "exec '$OUT/driver' $pools -endpoint 'unix://$DIR/csi.sock' -node-id node -max-volumes 12 -topology $rack=r1" \
		-second-node other -second-topology $rack=r2 -mutable-parameters readAheadKiB=256,directIO=true \
		-inventory "find '$DIR/r1' '$DIR/r2'" -size 67108864 -dir "$DIR" -strict "$@" >report 2>&1
	status=$?
	cat report
	return $status
}
killed() {
	echo "$1"
	exit 1
}
check -fail-fast -json first.json && exit
failed=$(sed -n -e '/^FAILED /p' -e '/^BROKEN /p' -e '/^LEFT BEHIND /p' report | sed 1q)
[ -n "$failed" ] || killed "$(sed -n '$p' report)" # such as a driver that does not start
rule=${failed##* }
case $failed in
"FAILED "*" response."* | "FAILED "*" status."* | BROKEN* | LEFT*) killed "$failed" ;; # not to be run alone
esac
# A rule that does not fail again failed because the machine is busy.
check -rules "$rule" || killed "$failed"
check -fail-fast -baseline first.json || killed "$(sed -n -e '/^FAILED /p' -e '/^BROKEN /p' -e '/^LEFT BEHIND /p' -e '$p' report | sed 1q)"
