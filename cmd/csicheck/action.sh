#!/bin/sh
# Runs csicheck with the inputs of action.yml: as root, so that it checks mounts, too.
set -eu
if ! program=$(command -v csicheck); then
	go install "github.com/csikit/csikit/cmd/csicheck@$CSICHECK_VERSION"
	program=$(go env GOPATH)/bin/csicheck
fi
set -- "$program" -endpoint "$CSICHECK_ENDPOINT" -format github -junit "$CSICHECK_JUNIT"
[ -z "$CSICHECK_START" ] || set -- "$@" -start "$CSICHECK_START"
[ -z "$CSICHECK_BASELINE" ] || set -- "$@" -baseline "$CSICHECK_BASELINE"
[ "$(id -u)" = 0 ] || set -- sudo -E env "PATH=$PATH" "$@"
set -f # the flags are words, and no patterns
# shellcheck disable=SC2086
exec "$@" $CSICHECK_FLAGS
