#!/bin/sh
# promtool "$@", from Debian's package prometheus, which is unpacked and not installed.
set -eu
version=$(apt-cache show --no-all-versions prometheus | sed -n 's/^Version: //p')
dir="${XDG_CACHE_HOME:-$HOME/.cache}/csikit-promtool/$version"
if ! [ -x "$dir/usr/bin/promtool" ]; then
	tmp=$(mktemp -d)
	trap 'rm -rf "$tmp"' EXIT
	chmod 755 "$tmp" # apt-get downloads as another user
	(cd "$tmp" && apt-get download -qq prometheus >/dev/null && dpkg-deb -x ./*.deb x)
	mkdir -p "$(dirname "$dir")"
	rm -rf "$dir"
	mv "$tmp/x" "$dir"
fi
"$dir/usr/bin/promtool" "$@"
