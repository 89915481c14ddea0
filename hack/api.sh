#!/bin/sh
# Compares the exported API of each module with that of the newest tag, and fails on
# incompatible changes from v1 on. Before v1 they are listed.
set -eu
cd "$(dirname "$0")/.."
apidiff='golang.org/x/exp/cmd/apidiff@v0.0.0-20261014143641-f0251eb4aa3e'
modules='. nodeops/fastmount'

# A pre-release comes before its release.
tag=$(git -c versionsort.suffix=- tag --merged HEAD --sort=-v:refname -l 'v[0-9]*' | head -n 1)
[ -n "$tag" ] || {
	echo "api: no tag yet, nothing to compare with"
	exit 0
}
tmp=$(mktemp -d)
trap 'git worktree remove --force "$tmp/tree" 2>/dev/null; rm -rf "$tmp"' EXIT
git worktree add -q --detach "$tmp/tree" "$tag"
GOBIN=$tmp go install "$apidiff"

export_api() { # directory file: quiet about the internal packages that it passes over
	(cd "$1" && "$tmp/apidiff" -m -w "$2" "$path" 2>"$tmp/err") || { cat "$tmp/err" >&2; exit 1; }
}
status=0
for m in $modules; do
	[ -f "$tmp/tree/$m/go.mod" ] || continue
	path=$(go -C "$m" list -m)
	export_api "$tmp/tree/$m" "$tmp/old"
	export_api "$m" "$tmp/new"
	"$tmp/apidiff" -m -incompatible "$tmp/old" "$tmp/new" 2>/dev/null >"$tmp/diff"
	[ -s "$tmp/diff" ] || continue
	echo "$path: incompatible with $tag:"
	cat "$tmp/diff"
	case $tag in v0.*) ;; *) status=1 ;; esac
done
exit $status
