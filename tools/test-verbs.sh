#!/usr/bin/env bash
# test-verbs.sh [PART] builds tutti with its RDMA transports and tests them on
# libibverbs over soft-RoCE, in VMs that tools/verbs-vm makes.
#
#   all    (the default) everything below but soak
#   ci     vm, for a machine that may be too slow or have no packages: then it says
#          so and passes; it ends after 17 minutes at most
#   vm     the transport's tests, collectives, ranks as processes, and faults
#   race   the transport's tests under the race detector, fewer rounds of each
#   pair   the conformance suite, all calls and a training between two machines
#   soak   TUTTI_SOAK steps (10000) with tensors that grow and shrink, then long loss
#
# It needs gcc and libibverbs-dev, which it asks apt for when they are missing and it
# is root; so does verbs-vm for what it needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
GO=${GO:-go}
part=${1:-all}

aptget() { timeout -k 10 180 env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" </dev/null; }

packages() {
	local wanted=(gcc libibverbs-dev)
	dpkg -s "${wanted[@]}" >/dev/null 2>&1 && return
	if [ "$(id -u)" != 0 ]; then
		echo "missing: some of the Debian packages ${wanted[*]}" >&2
		return 1
	fi
	aptget update && aptget install -y --no-install-recommends "${wanted[@]}"
}

skip() { printf '\nSKIPPED: verbs is not tested here: %s\n' "$*"; exit 0; }

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

job=$(mktemp -d)
trap 'rm -rf "$job"' EXIT

# An emulated machine that needs longer to boot than this would time out in its tests.
SLOW=40
if [ "$part" = ci-bounded ]; then
	packages || skip "there are no packages gcc and libibverbs-dev to be had"
	tools/verbs-vm run -t 300 "$job" true || skip "tools/verbs-vm runs no machine (see above)"
	begin=$SECONDS
	tools/verbs-vm run -t $SLOW "$job" true || skip "a machine needs more than $SLOW s to boot"
	echo "a machine boots in $((SECONDS - begin)) s"
else
	packages
fi

export CGO_ENABLED=1
$GO test -tags verbs -c -o "$job/verbs.test" ./transport/verbs
$GO test -tags verbs -c -o "$job/comm.test" ./comm
$GO build -tags verbs -o "$job/" ./cmd/tuttirun ./cmd/tuttibench ./cmd/verbsinfo ./examples/digits
case $part in all | race) $GO test -race -tags verbs -c -o "$job/race.test" ./transport/verbs ;; esac
cp tools/verbs-in-vm.sh "$job/run"

case $part in
all)
	tools/verbs-vm run -t 600 "$job" ./run vm
	tools/verbs-vm run -t 400 "$job" ./run race
	tools/verbs-vm pair -t 300 "$job" ./run pair
	;;
ci-bounded)
	[ $SECONDS -le $((WHOLE - TESTS - 30)) ] || skip "setting up took $SECONDS s, which leaves too little time for tests"
	status=0
	# A hang ends by the limit of its test, which comes first and is no reason to skip.
	tools/verbs-vm run -t $TESTS "$job" env LIMIT=300s ./run vm || status=$?
	case $status in
	77 | 124) skip "the machine is too slow (see above)" ;;
	125) skip "the VM itself failed (see above)" ;;
	esac
	exit $status
	;;
vm) tools/verbs-vm run -t 600 "$job" ./run vm ;;
race) tools/verbs-vm run -t 400 "$job" ./run race ;;
pair) tools/verbs-vm pair -t 300 "$job" ./run pair ;;
soak) tools/verbs-vm run -t 7200 "$job" env TUTTI_SOAK="${TUTTI_SOAK:-10000}" ./run soak ;;
*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
