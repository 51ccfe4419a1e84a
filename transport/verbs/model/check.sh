#!/usr/bin/env bash
# check.sh checks verbs.pml with spin: no assertion fails, no end waits for ever, and
# nothing goes round for ever. The model names, in a line "broken: -DA -DB", the rules
# that it can be built without; each must then fail, so that it is known that the
# check can. It needs gcc and Debian's package spin.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
command -v spin >/dev/null || { echo "spin is missing: apt install spin" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# check MODEL [-DRULE]: passes where spin finds nothing wrong; 1 where it finds
# something; 2 where there is no verdict, for lack of memory, depth or time or because
# the model cannot be built.
check() {
	local model=$1; shift
	(cd "$work" && rm -f pan* ./*.trail && spin -a "$@" "$model" >log 2>&1 || { cat log >&2; exit 2; }
	gcc -O2 -DVECTORSZ=2048 -DNOREDUCE -o pan pan.c 2>log && gcc -O2 -DVECTORSZ=2048 -DNP -o pan.np pan.c 2>log || { cat log >&2; exit 2; }
	for pan in "./pan -m1000000" "./pan.np -l -m1000000"; do
		status=0
		timeout "${MODELTIME:-600}" $pan >log 2>&1 || status=$?
		! grep -q '^pan:1: ' log || { tail -n 20 log; exit 1; }
		if [ $status != 0 ] || ! grep -q 'errors: 0' log || grep -Eq 'max search depth too small|out of memory' log; then
			grep -E 'memory|MEMLIM|too small|not completed' log >&2 || tail -n 20 log >&2
			echo "no verdict: the search was cut short (status $status; see above for memory or depth; 124: time)" >&2
			exit 2
		fi
		grep 'states, stored' log | sed 's/^ */\t/'
	done)
}

model=verbs.pml
echo "$model"
check "$PWD/$model"
for rule in $(sed -n 's/.*broken: //p' "$model"); do
	status=0
	check "$PWD/$model" "$rule" >/dev/null || status=$?
	case $status in
	0) echo "$model: without the rule $rule nothing is found wrong" >&2; exit 1 ;;
	1) echo "	without $rule: found" ;;
	*) exit "$status" ;;
	esac
done
