#!/bin/sh
# Runs the tests of the given packages, which may be of several modules, as the user nobody: those that need no
# privilege, and those that need a user namespace, which must not be skipped.
set -eu
dir=$(mktemp -d "${TMPDIR:-/tmp}/uXXXX") # short: sockets are made below it
trap 'rm -rf "$dir"' EXIT
chmod 0755 "$dir"
mkdir -m 0777 "$dir/t"
for package in "$@"; do
	name=$(echo "$package" | tr -c 'a-z0-9\n' _)
	go -C "$package" test -c -o "$dir/$name" .
	printf '%s as nobody\n' "$package"
	(
		cd "$dir/t"
		# Only what a test needs of the environment: HOME and the caches are root's.
		env -i PATH="$PATH" TMPDIR="$dir/t" CSIKIT_TEST_REQUIRE=userns \
			setpriv --reuid 65534 --regid 65534 --clear-groups "$dir/$name" -test.timeout 5m
	)
done
