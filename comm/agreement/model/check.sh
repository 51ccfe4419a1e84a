#!/bin/bash
# check.sh checks agreement.pml with spin: no error within small bounds, and each bug that can be
# planted is found. It installs nothing.
set -euo pipefail
cd "$(dirname "$0")"
for tool in spin gcc; do
	command -v "$tool" >/dev/null || { echo "make model needs $tool: apt install $tool" >&2; exit 1; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model=$PWD/agreement.pml
cd "$work"

# explore BOUNDS: leaves the result of the search in pan.out. A search that memory or depth has cut
# short gives no verdict, and ends the script with 3.
explore() {
	spin -a "${@/#/-D}" "$model" >spin.out || { cat spin.out >&2; exit 1; }
	gcc -w -O2 -DSAFETY -DCOLLAPSE -DMEMLIM=1500 -o pan pan.c
	./pan -m100000 >pan.out 2>&1 || true
	if ! grep -q 'errors: ' pan.out || grep -Eq 'max search depth too small|out of memory' pan.out; then
		tail -n 20 pan.out >&2
		echo "$*: no verdict: the search was cut short" >&2
		exit 3
	fi
}

# correct BOUNDS: expects no error.
correct() {
	explore $1
	if ! grep -q 'errors: 0' pan.out; then
		grep '^pan:1: ' pan.out >&2
		spin -t -p $(printf -- '-D%s ' $1) "$model" | tail -n 40 >&2
		echo "$1: an error" >&2
		exit 1
	fi
	echo "$1: $(awk '/states, stored/ { print $1 }' pan.out) states, no error"
}

# finds BOUNDS BUG: expects that the planted bug breaks the assertion.
finds() {
	explore $1
	if ! grep -q '^pan:1: assertion violated .*decided' pan.out; then
		echo "the planted bug was not found: $2" >&2
		exit 1
	fi
	echo "found, as it must be: $2"
}

correct "RANKS=3 KILLS=1 LOSSES=2"
finds "RANKS=3 KILLS=1 LOSSES=2 BUG=1" "members known to be dead do not count"
finds "RANKS=3 KILLS=1 LOSSES=2 BUG=2" "a leader ignores what was accepted before"
finds "RANKS=3 KILLS=1 LOSSES=2 BUG=3" "a leader does not wait until all follow it"
