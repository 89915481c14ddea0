#!/bin/sh
# Checks the mutant of nodeops, internal/probe or internal/mark in $OUT by the tests of the
# three, those that take seconds first, without one that needs 20 GB, and those that write to
# /sys/fs/ext4. The last line is the test that failed.
set -u
PATH=$PATH:/usr/sbin:/sbin
cd "$DIR" || exit 100
# Not the tmpfs: a loop device of a file on it cannot be punched.
{ truncate -s 5G disk && mkfs.xfs -q disk && mkdir t && mount -o loop disk t; } || exit 100
export TMPDIR="$DIR/t" CSIKIT_TEST_REQUIRE=root,tools
skip="TestMarkSurvivesMkfs|TestExt4AfterError|TestErrorInTheJournal|TestExpand/ext4_with_errors"
for package in mark probe nodeops; do
	"$OUT/$package.test" -test.failfast -test.skip "$skip" -test.timeout 7m >log 2>&1 && continue
	cat log
	failed=$(grep -m1 -o -e '--- FAIL: [^ ]*' -e '^panic: .*' -e '^gate: tests left behind.*' log)
	echo "$package: ${failed:-$(sed -n '$p' log)}"
	exit 1
done
