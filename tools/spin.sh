# The functions with which the check.sh of a model runs the model checker spin. A check.sh sources
# this file, sets model to the path of its model, and calls correct and finds. Nothing is installed.
for tool in spin gcc; do
	if ! command -v "$tool" >/dev/null; then
		echo "make model needs $tool, which Debian has in the package of that name: apt install $tool" >&2
		exit 1
	fi
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# explore NAME=VALUE...: leaves the result of the search in pan.out. Its memory is bounded. A search
# that memory or depth has cut short gives no verdict, and ends the script with 3.
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

# finds BOUNDS BUG [PATTERN]: expects that the bug that is planted with these bounds is found, with an
# error that matches the PATTERN.
finds() {
	explore $1
	if ! grep -q "^pan:1: ${3-}" pan.out; then
		echo "the bug that was planted was not found: $2" >&2
		exit 1
	fi
	echo "found, as it must be: $2: $(sed -n 's/^pan:1: //p' pan.out)"
}
