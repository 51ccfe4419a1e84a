#!/bin/bash
# Checks the models of the negotiation with spin: no error within some small bounds,
# and each of the bugs that can be planted in them is found. Installs nothing.
set -euo pipefail
cd "$(dirname "$0")"
for tool in spin gcc; do
	if ! command -v "$tool" >/dev/null; then
		echo "make model needs $tool, which Debian has in the package of that name: apt install $tool" >&2
		exit 1
	fi
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
models=$PWD
model=$models/negotiation.pml
cd "$work"

# explore NAME=VALUE...: leaves in pan.out what the search says. Its memory is bounded.
# A search that was cut short, by memory or depth, says nothing of the model: that ends
# this script with 3, and not with the 1 of an error.
explore() {
	spin -a "${@/#/-D}" "$model" >spin.out || { cat spin.out >&2; exit 1; }
	gcc -w -O2 -DSAFETY -DCOLLAPSE -DMEMLIM=1500 -o pan pan.c
	local status=0
	./pan -m200000 >pan.out 2>&1 || status=$?
	grep -q '^pan:1: ' pan.out && return
	if [ $status != 0 ] || ! grep -q 'errors: ' pan.out ||
		grep -Eq 'max search depth too small|out of memory|Search not completed' pan.out; then
		grep -E 'memory|MEMLIM|too small|not completed' pan.out >&2 || tail -n 20 pan.out >&2
		echo "$*: no verdict: the search was cut short (status $status; see above for memory or depth)" >&2
		exit 3
	fi
}

# correct BOUNDS...: expects no error within each of these bounds.
correct() {
	for bounds in "$@"; do
		explore $bounds
		if ! grep -q 'errors: 0' pan.out; then
			echo "$bounds: an error" >&2
			grep '^pan:1: ' pan.out >&2
			spin -t -p $(printf -- '-D%s ' $bounds) "$model" | tail -n 40 >&2
			exit 1
		fi
		echo "$bounds: $(awk '/states, stored/ { print $1 }' pan.out) states, no error"
	done
}

# finds BOUNDS BUG: expects that the bug that is planted with these bounds is found.
finds() {
	explore $1
	if grep -q 'errors: 0' pan.out; then
		echo "the bug that was planted was not found: $2" >&2
		exit 1
	fi
	echo "found, as it must be: $2: $(sed -n 's/^pan:1: //p' pan.out)"
}

# The bounds: what grows further takes minutes.
correct "RANKS=2 NAMES=2 CACHE=1 STEPS=2" "RANKS=3 NAMES=2 CACHE=1 STEPS=1" "RANKS=2 NAMES=3 CACHE=2 STEPS=1" "RANKS=2 NAMES=2 CACHE=1 STEPS=3"
finds BUG=1 "cache IDs are given away before all ranks know of the eviction"
finds BUG=2 "rank 0 is not waited for"
finds BUG=3 "tensors that wait for a rank that joins are forgotten"
finds BUG=4 "a bit of an evicted entry is ignored"

model=$models/groups.pml
correct "RANKS=2 STEPS=2" "RANKS=3 STEPS=1" "RANKS=3 STEPS=1 SET=3" "RANKS=3 STEPS=2 MISSING=1 SET=5" "RANKS=2 STEPS=3 REFUSED=1" "RANKS=3 STEPS=1 REFUSED=1"
finds "RANKS=2 STEPS=2 BUG=1" "a group that has failed fails once, and a late rank waits"
finds "RANKS=2 STEPS=2 MISSING=1 BUG=2" "the other tensors of a group wait when one has failed"
finds "RANKS=2 STEPS=2 BUG=3" "a request that was not sent goes together with the next one of its name"
finds "RANKS=2 STEPS=2 REFUSED=1 BUG=5" "a rank that refuses two calls is taken to have refused one"
finds "RANKS=2 STEPS=2 REFUSED=1 BUG=6" "a refused call of two names ends when one of them has failed"
finds "RANKS=2 STEPS=2 REFUSED=1 BUG=7" "a refused call fails on the rank that has refused it and has made its next call"
finds "RANKS=3 STEPS=2 BUG=4" "the failure of a later submission ends the one that is executed"
