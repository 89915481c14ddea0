#!/bin/sh
# Fails on words that a reader would not search for. Say what the specification and the man
# pages say: recreate, caller, another process, report, validate, result, stale, corrupted.
set -eu
cd "$(dirname "$0")/.."
words='anew|somebody|someone|whoever|verdicts?|judges?|judged|patience|impatient|cut off|goes on|looks? after|is told|are told|was told'
if git grep -nEiw "$words" -- '*.go' '*.md' '*.sh' '*.yaml' '*.yml' '*.tmpl' Makefile '*Dockerfile' ':!hack/words.sh'; then
	echo "words: rewrite these in plain technical terms (hack/words.sh)" >&2
	exit 1
fi
