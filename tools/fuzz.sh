#!/usr/bin/env bash
# Runs every fuzz target of the module for FUZZTIME each. The targets are found,
# not listed, so a new decoder's target cannot be forgotten.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${GO:=go}" "${FUZZTIME:=10s}"

# go test -list prints a package's targets, then "ok <package> <time>".
targets=$("$GO" test -list '^Fuzz' ./... |
	awk '/^Fuzz/ { names[n++] = $1 }
	     /^(ok|\?)/ { for (i = 0; i < n; i++) print $2, names[i]; n = 0 }')
if [ -z "$targets" ]; then
	echo 'no fuzz target found' >&2
	exit 1
fi

while read -r package target; do
	echo "fuzz $package $target for $FUZZTIME"
	"$GO" test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" "$package"
done <<<"$targets"
echo "$(wc -l <<<"$targets") fuzz targets ran"
