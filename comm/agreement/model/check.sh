#!/bin/bash
# check.sh checks agreement.pml with spin: no error within small bounds, and each bug that can be
# planted is found. Then it does the same for the Machine.
set -euo pipefail
cd "$(dirname "$0")"
dir=$PWD
model=$dir/agreement.pml
source ../../../tools/spin.sh

correct "RANKS=3 KILLS=1 LOSSES=2"
finds "RANKS=3 KILLS=1 LOSSES=2 BUG=1" "members known to be dead do not count" 'assertion violated .*decided'
finds "RANKS=3 KILLS=1 LOSSES=2 BUG=2" "a leader ignores what was accepted before" 'assertion violated .*decided'
finds "RANKS=3 KILLS=1 LOSSES=2 BUG=3" "a leader does not wait until all follow it" 'assertion violated .*decided'

# The Machine itself: all configurations of four ranks, of which two are killed. A bug that is
# planted in machine.go must break a promise.
cd "$dir"
test=TestEveryPartitionAndSuspicionOfAFewRanksKeepsTheRules
TUTTI_SOAK=1 go test -count=1 -run "$test" -v .. >"$work/go.out" || { cat "$work/go.out" >&2; exit 1; }
grep ' configurations, ' "$work/go.out"

# plant BUG OLD NEW: replaces OLD by NEW in machine.go and expects that two ranks decide differently.
plant() {
	src=$(cat ../machine.go)
	printf '%s\n' "${src/"$2"/"$3"}" >"$work/machine.go"
	! cmp -s ../machine.go "$work/machine.go" || { echo "cannot plant the bug: $1" >&2; exit 1; }
	printf '{"Replace":{"%s":"%s"}}' "$(cd .. && pwd -P)/machine.go" "$work/machine.go" >"$work/overlay.json"
	if go test -count=1 -overlay "$work/overlay.json" -run "$test" .. >"$work/go.out" 2>&1 ||
		! grep -q 'another live rank has decided' "$work/go.out"; then
		cat "$work/go.out" >&2
		echo "the planted bug was not found: $1" >&2
		exit 1
	fi
	echo "found, as it must be: $1"
}

plant "a quorum is one member too small" '2*n > all' '2*n >= all'
plant "dead members count as present" 'n, all := side.Len()' 'n, all := side.Len()+m.states[m.me].Dead.Len()'
plant "dead members are left out of the base" 'm.base.Len()' 'm.base.Minus(m.states[m.me].Dead).Len()'
plant "a leader ignores what was accepted before" 'latest > 0 && st' 'latest < 0 && st'
plant "votes of earlier terms are not refused" '.Accepted != own.Accepted {' '.Accepted == 0 {'
