#!/usr/bin/env bash
# Runs every fuzz target of the module for FUZZTIME each, one target per core. The
# targets are found, not listed, so a new decoder's target cannot be forgotten.
#
#   fuzz.sh                  all targets
#   fuzz.sh build            only build the programs, one per package, into out/fuzz
#   fuzz.sh PACKAGE          only build the program of one package
#   fuzz.sh PACKAGE TARGET   one target; its output appears when it has ended
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
programs=$PWD/out/fuzz
: "${GO:=go}" "${FUZZTIME:=5s}"
export GO FUZZTIME

# program PACKAGE is the name of a package's program.
program() { echo "$programs/${1//\//.}"; }

# each runs this script on each line of its input, on every core.
each() { xargs -P "$(getconf _NPROCESSORS_ONLN)" -L 1 tools/fuzz.sh; }

if [ $# = 2 ]; then
	# By default Go minimizes each new input for up to a minute, so most targets would spend all of
	# their time on a few inputs. With at most 10 tries each, they find more in half of the time.
	package=$1 target=$2
	output=$(mktemp)
	trap 'rm -f "$output"' EXIT
	status=0
	(cd "$($GO list -f '{{.Dir}}' "$package")" && "$(program "$package")" -test.run '^$' -test.fuzz "^$target\$" \
		-test.fuzztime "$FUZZTIME" -test.fuzzminimizetime 10x -test.fuzzcachedir "$($GO env GOCACHE)/fuzz/$package" -test.parallel 1) </dev/null >"$output" 2>&1 || status=$?
	printf 'fuzz %s %s for %s\n%s\n' "$package" "$target" "$FUZZTIME" "$(<"$output")"
	# Up to Go 1.26 the end of the time itself may count as a failure, with this text alone
	# (golang/go#75804). A failing input is printed, or the file that it was written to.
	if [ $status != 0 ] && grep -qx '    context deadline exceeded' "$output" && ! grep -qE 'Failing input|panic:|_test\.go:' "$output"; then
		echo "$target only reached the end of its time, which golang/go#75804 counts as a failure"
		status=0
	fi
	exit $status
fi
if [ $# = 1 ] && [ "$1" != build ]; then
	exec "$GO" test -c -fuzz . -o "$(program "$1")" "$1"
fi

# Only the files that belong to the package on this platform count.
targets=$("$GO" list -f '{{$p := .}}{{range .TestGoFiles}}{{$p.ImportPath}} {{$p.Dir}}/{{.}}
{{end}}{{range .XTestGoFiles}}{{$p.ImportPath}} {{$p.Dir}}/{{.}}
{{end}}' ./... | while read -r package file; do sed -nE "s|^func (Fuzz[A-Za-z0-9_]*)\(.*|$package \1|p" "$file"; done)
if [ -z "$targets" ]; then
	echo 'no fuzz target found' >&2
	exit 1
fi
mkdir -p "$programs"
cut -d ' ' -f 1 <<<"$targets" | sort -u | each
[ "${1:-}" != build ] || exit 0
each <<<"$targets"
echo "$(wc -l <<<"$targets") fuzz targets ran"
