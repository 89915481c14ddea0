#!/bin/sh
# Releases all modules at one version: hack/release.sh v0.1.0
#
# Writes the version into the requirements between the modules, commits that, runs CHECK
# (default: make ci), and tags the commit once for each module that others may require,
# in the order in which they require each other. It pushes nothing and prints what to push.
set -eu
cd "$(dirname "$0")/.."
version=${1-}
modules='nodeops/fastmount examples/blockdriver examples/minimal examples/nfsdriver'

fail() { echo "release: $*" >&2; exit 1; }
echo "$version" | grep -Eqx 'v[01]\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?' ||
	fail "VERSION is '$version', want a version such as v0.1.0; v2 needs /v2 in the module paths"
[ -z "$(git status --porcelain)" ] || fail "the work tree is not clean: commit or stash first"
tags=$version
for m in $modules; do tags="$tags $m/$version"; done
for tag in $tags; do
	git rev-parse -q --verify "refs/tags/$tag" >/dev/null && fail "tag $tag exists"
done

before=$(git rev-parse HEAD)
undo() { git reset -q --hard "$before"; }
trap 'undo; exit 1' INT TERM
for m in $(git ls-files '*/go.mod' | xargs -n1 dirname); do
	for required in github.com/csikit/csikit github.com/csikit/csikit/nodeops/fastmount; do
		grep -q "$required v" "$m/go.mod" || continue
		go mod edit -require="$required@$version" "$m/go.mod"
	done
done
git diff --quiet || git commit -qam "release $version"
${CHECK:-make ci} || { undo; fail "the check failed: nothing is tagged"; }
for tag in $tags; do
	git tag -a "$tag" -m "$tag"
	echo "tagged $tag"
done
echo "Push them with: git push --atomic origin HEAD $tags"
