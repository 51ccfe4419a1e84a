#!/usr/bin/env bash
# test-verbs.sh [PART] builds tutti with its RDMA transports and tests them on
# libibverbs over soft-RoCE, in VMs that tools/verbs-vm makes.
#
#   all    (the default) everything below but soak
#   ci     the same for a machine that may be too slow or have no packages: what it
#          cannot test for that it says, and passes; it ends after 17 minutes at most
#   vm     the transport's tests, collectives, ranks as processes, and faults
#   race   the transport's tests under the race detector, fewer rounds of each
#   pair   the conformance suite, all calls and a training between two machines
#   ready  nothing, but it installs and builds what the others need, as far as it can be had
#   soak   TUTTI_SOAK steps (10000) with tensors that grow and shrink, then long loss
#
# It needs gcc, libibverbs-dev and procps, which it asks apt for when they are missing and it
# is root; so does verbs-vm for what it needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
GO=${GO:-go}
part=${1:-all}

aptget() { timeout -k 10 180 env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" </dev/null; }

packages() {
	local wanted=(gcc libibverbs-dev procps)
	dpkg -s "${wanted[@]}" >/dev/null 2>&1 && return
	if [ "$(id -u)" != 0 ]; then
		echo "missing: some of the Debian packages ${wanted[*]}" >&2
		return 1
	fi
	aptget update && aptget install -y --no-install-recommends "${wanted[@]}"
}

# skip ends the test with success, and notes for the last line of .ci/run what was not tested.
skip() {
	printf '\nSKIPPED: verbs is not tested here, or not all of it: %s\n' "$*"
	mkdir -p out && echo "verbs: $*" >>out/skipped
	exit 0
}

# All of ci is bounded, so that set-up that hangs fails nothing. Tests that hang do:
# they begin only where WHOLE leaves them TESTS, and have nearer limits of their own.
WHOLE=1020 TESTS=600
if [ "$part" = ci ]; then
	status=0
	timeout -k 30 $WHOLE tools/test-verbs.sh ci-bounded &
	trap "kill $! 2>/dev/null || :" INT TERM HUP
	wait $! || status=$?
	[ $status = 0 ] || [ $SECONDS -lt $WHOLE ] || skip "$WHOLE s were not enough (see above)"
	exit $status
fi

job=$(mktemp -d) output=$(mktemp)
trap 'rm -rf "$job" "$output"' EXIT

# An emulated machine that needs longer to boot than this would time out in its tests.
SLOW=40
if [ "$part" = ci-bounded ]; then
	packages || skip "there are no packages gcc, libibverbs-dev and procps to be had"
	tools/verbs-vm run -t 300 "$job" true || skip "tools/verbs-vm runs no machine (see above)"
	begin=$SECONDS
	tools/verbs-vm run -t $SLOW "$job" true || skip "a machine needs more than $SLOW s to boot"
	echo "a machine boots in $((SECONDS - begin)) s"
elif [ "$part" = ready ]; then
	packages || exit 0
	tools/verbs-vm run -a tcg -t 300 "$job" true || : # makes the image; ci says what fails
else
	packages
fi

# machine MODE SECONDS PART [VARIABLE=VALUE...] runs a part in one VM or two. One that has
# not ended long after all in it should have been ended by itself is told of with the step
# that it was at.
machine() {
	local mode=$1 limit=$2 part=$3 status=0
	shift 3
	tools/verbs-vm "$mode" -t "$limit" "$job" env WITHIN=$((limit - 100)) "$@" ./run "$part" | tee "$output" || status=${PIPESTATUS[0]}
	[ $status != 124 ] || echo "the machine itself hangs: it was ended after $limit s, and was at: $(grep '=== ' "$output" | tail -n 1)"
	return $status
}

# bounded is machine for a part that the machine may be too slow for, or that no time is
# left for: then it is skipped, and with it what comes after it.
bounded() {
	local status=0
	[ $SECONDS -le $((WHOLE - $2 - 30)) ] || skip "$3: $SECONDS s have passed, which leaves too little time for it"
	machine "$@" || status=$?
	case $status in
	0) ;;
	77) skip "$3: the machine is too slow (see above)" ;;
	124) skip "$3: the machine is too slow to keep its own time (see above)" ;;
	125) skip "$3: the VM itself failed (see above)" ;;
	*) exit $status ;;
	esac
}

# A hang that nothing names would look like a machine that is too slow.
hangs_are_told() {
	local said status=0
	said=$(WITHIN=5 tools/verbs-in-vm.sh hang) || status=$?
	if [ $status != 1 ] && [ $status != 77 ] || ! grep -q 'a step that hangs: hangs' <<<"$said"; then
		echo "FAIL: a step that hangs ends with status $status, and says: $said"
		exit 1
	fi
}

case $part in all | ci-bounded) hangs_are_told & told=$! ;; esac
export CGO_ENABLED=1
$GO test -tags verbs -c -o "$job/verbs.test" ./transport/verbs
$GO test -tags verbs -c -o "$job/comm.test" ./comm
$GO build -tags verbs -o "$job/" ./cmd/tuttirun ./cmd/tuttibench ./cmd/verbsinfo ./examples/digits
case $part in all | ci-bounded | race | ready) $GO test -race -tags verbs -c -o "$job/race.test" ./transport/verbs ;; esac
cp tools/verbs-in-vm.sh "$job/run"

[ -z "${told:-}" ] || wait "$told"
case $part in
all)
	machine run 600 vm
	machine run 400 race
	machine pair 400 pair
	;;
ci-bounded)
	# A hang ends by the limit of its test, or by the one on all steps: both come before
	# the VM's, name the step, and are no reason to skip.
	bounded run $TESTS vm LIMIT=300s
	bounded pair 300 pair
	bounded run 300 race
	;;
vm) machine run 600 vm ;;
race) machine run 400 race ;;
pair) machine pair 400 pair ;;
ready) ;;
soak) machine run 7200 soak TUTTI_SOAK="${TUTTI_SOAK:-10000}" ;;
*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
