#!/bin/sh
# Says before "make test" what it takes, and what this machine will skip.
free=$(df -Pk "${TMPDIR:-/tmp}" | awk 'NR == 2 {print int($4 / 1048576)}')
echo "about 20 minutes on two cores, 40 with empty caches; 10 GB of disk with the caches ($free GB are free in ${TMPDIR:-/tmp})"
[ "$free" -ge 5 ] || echo "less than 5 GB there: tests will fail, set TMPDIR"
[ "$(id -u)" = 0 ] || echo "not root: what needs loop devices or block file systems is skipped; all run with: sudo make test"
[ "$(go env CGO_ENABLED)" = 1 ] && command -v "$(go env CC)" >/dev/null || echo "no C compiler: the race detector is off; on Debian: apt-get install gcc libc6-dev"
[ "$(uname)" = Linux ] || echo "not Linux: what mounts is skipped; a virtual machine with Linux runs it"
echo "skipped here and run elsewhere: NFS, device-mapper and older kernels (make test-vm), a cluster (make test-cluster), long forms (make torture)"
