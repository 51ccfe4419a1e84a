#!/usr/bin/env bash
# Fails when a committed file names a path of the machine that it was written
# on: such a text is wrong everywhere else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

patterns=()
for dir in "$PWD" "${HOME:-}" "$(go env GOMODCACHE)" "$(go env GOCACHE)"; do
	case $dir in '' | /) continue ;; esac
	patterns+=(-e "$dir/")
done

if git grep -nIF "${patterns[@]}" -- .; then
	echo 'the lines above name paths of this machine' >&2
	exit 1
fi
