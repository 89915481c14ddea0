#!/bin/sh
# Runs every fuzz test for the given time.
set -eu
go list -f '{{$p := .ImportPath}}{{range .TestGoFiles}}{{$p}} {{$.Dir}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$p}} {{$.Dir}}/{{.}}{{"\n"}}{{end}}' ./... |
	while read -r package file; do
		[ -n "$package" ] || continue
		sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file" | while read -r name; do
			echo "$package $name"
			go test -run '^$' -fuzz "^$name\$" -fuzztime "$1" "$package" </dev/null
		done
	done
