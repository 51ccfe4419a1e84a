#!/usr/bin/env bash
# verbs-in-vm.sh vm|race|pair|soak is what test-verbs.sh runs in its VMs, which are
# emulated and slow: no time is judged here but by limits that are far away. What hangs
# fails, by a limit on each program, and by one on all: before WITHIN seconds are over, if
# that is set. It is named then. What fails where the machine is measured to be much slower
# still exits with 77, after saying so.
#
# "verbs-in-vm.sh hang" hangs, for a test of that; it needs no VM.
set -euo pipefail
export TRANSPORTTEST_WAIT_LIMIT=60s

step="the beginning"
noted=$(mktemp) # the step, for watch
say() {
	step=$*
	echo "$step" >"$noted"
	echo "=== $((SECONDS / 60)):$(printf %02d $((SECONDS % 60))) $step"
}

# loop is the milliseconds of something that takes about five seconds in a VM whose host
# has little else to do; SLOW is what nothing can be judged by.
loop() {
	local begin=${EPOCHREALTIME/./} i
	for ((i = 0; i < 200000; i++)); do :; done
	echo $(((${EPOCHREALTIME/./} - begin) / 1000))
}
SLOW=20000
atfirst=$(loop)

fail() { # WHAT...: what went wrong, with its output in tests.log or fault.log
	local now
	now=$(loop)
	if [ "$atfirst" -lt $SLOW ] && [ "$now" -lt $SLOW ]; then
		echo "FAIL: $step: $*; a loop took $atfirst ms at first, and takes $now ms now"
		exit 1
	fi
	echo "TOO SLOW to judge by: $step: $*; a loop took $atfirst ms at first, and takes $now ms now"
	exit 77
}

# ended STATUS: what a program's status says of how it came to its end.
ended() {
	case $1 in
	124 | 137) echo "hangs, and was ended" ;;
	*) echo "status $1" ;;
	esac
}

# below PID: the processes that it has started, and those that they have.
below() {
	local child
	for child in $(pgrep -P "$1"); do
		below "$child"
		echo "$child"
	done
}

# watch ends what hangs where no nearer limit does: all of it takes 150 s on a machine
# whose loop takes five, so that one which is not twice as slow has no other excuse for
# being at it still. What hangs is made to tell where, and does not disturb the measuring.
watch() {
	local pause signal name
	sleep "$WITHIN" & pause=$!
	trap 'kill $pause; exit' TERM
	wait $pause
	step=$(cat "$noted")
	echo "watch: $WITHIN s are over in the step \"$step\""
	kill -STOP "$work" # this verdict, and not that what is ended here has failed
	for signal in QUIT KILL; do
		kill "-$signal" $(below "$work") 2>/dev/null || :
		sleep 3
	done
	tail -n 60 tests.log fault.log 2>/dev/null || :
	SLOW=10000
	fail "hangs: it has not ended after $WITHIN s in all"
}

# tests PROGRAM PATTERN [LIMIT]: its tests, of which one at least must not be skipped.
tests() {
	local status=0
	"./$1" -test.run "$2" -test.v -test.timeout "${3:-${LIMIT:-300s}}" >tests.log 2>&1 || status=$?
	grep -E '^ *--- |^PASS|^FAIL|panic|: (after|killed|[0-9]+ steps)' tests.log | grep -v -e '--- SKIP' -e '^        *---' || :
	if [ $status != 0 ] || ! grep -q '^--- PASS' tests.log; then
		tail -n 60 tests.log
		grep -q '^panic: test timed out' tests.log && fail "$1 $2: hangs: $(sed -n '/^\trunning tests:/,/^$/p' tests.log | tr -d '\n')"
		fail "$1 $2: status $status"
	fi
}

bench() { # TRANSPORT ARGUMENT...
	local t=$1; shift
	timeout -k 10 120 ./tuttirun -np 2 ./tuttibench -transport "$t" "$@" || fail "tuttibench $t $*: $(ended $?)"
}

# A job that is made to fail must end before HANG, with an error status and the cause in
# its output. Its status alone does not tell: 137 is also that of a rank that was killed.
HANG=100
must_fail() { # WHAT WANTED: the job runs in the background since began, its output in fault.log
	local status=0 took
	wait "$job" || status=$?
	took=$((SECONDS - began))
	if [ "$status" = 0 ] || [ $took -ge $HANG ] || ! grep -q "$2" fault.log; then
		cat fault.log; fail "$1: $(ended $status) after $took s, want an error with \"$2\""
	fi
	echo "ok: $1: $(grep -m 1 -o "$2.*" fault.log | cut -c 1-120)"
}
start() { # a job that would go on for long; returns once it is in its calls
	began=$SECONDS
	timeout -k 10 $HANG ./tuttirun -np 2 ./tuttibench -op allreduce -transport grpc+verbs -min 1Mi -max 1Mi -time 90s >fault.log 2>&1 &
	job=$!
	for i in $(seq 300); do ! grep -q median fault.log || break; sleep 0.1; done
	sleep 1
}

gid_is_back() {
	local i
	for i in $(seq 100); do ! grep -q 0000:ffff: "/sys/class/infiniband/$VERBS_DEV/ports/1/gids/$VERBS_GID" || break; sleep 0.1; done
}

faults() {
	say "faults"
	start; kill -9 "$(pgrep -x tuttibench | head -n 1)"; must_fail "SIGKILL of a rank" "peer lost"
	start; ip link set "$VERBS_NETDEV" down; must_fail "link down" "local queue pair operation error"
	ip link set "$VERBS_NETDEV" up
	gid_is_back
	tests verbs.test '^TestDeviceReports' # which takes the link down and up
	gid_is_back
	began=$SECONDS
	TUTTI_VERBS_GID_INDEX=9 timeout -k 10 $HANG ./tuttirun -np 2 ./tuttibench -transport grpc+verbs >fault.log 2>&1 & job=$!
	must_fail "a GID that there is none of" "GIDs has the index"
	loss 100 100ms
}

# loss LIMIT TIME: right results over a link that loses 1 % of its packets.
loss() {
	say "1 % of packets lost"
	tc qdisc add dev "$VERBS_NETDEV" root netem loss 1%
	timeout -k 10 "$1" ./tuttirun -np 2 ./tuttibench -op allreduce -transport grpc+verbs -min 1Ki -max 256Ki -factor 16 -time "$2" || fail "1 % of packets lost: $(ended $?)"
	tc qdisc del dev "$VERBS_NETDEV" root
}

vm() {
	timeout -k 10 60 ./verbsinfo || fail "verbsinfo: $(ended $?)"
	say "a loop takes $atfirst ms"
	say "the transport on the device"
	tests verbs.test '^TestDevice(Keeps|Spreads|Refuses|Events|Peer)'
	say "rails"
	rails
	say "collectives and cuts on the device"
	tests comm.test '^TestDevice'
	say "ranks as processes"
	bench tcp+verbs -op pingpong -min 8 -max 512Ki -factor 256
	bench verbs -op pingpong -min 8 -max 8
	bench grpc+verbs -op allreduce -min 8 -max 2Mi -factor 512
	faults
	say "done"
}

# race has the race detector, which an emulator makes slower still, look at what goes
# through cgo, too.
race() {
	say "the transport on the device, under the race detector"
	TRANSPORTTEST_DIVISOR=20 tests race.test '^TestDevice(Keeps|Spreads|Refuses|Events)'
	say "done"
}

# rails has each rank of a host take its own of two devices, and no other in its place.
rails() {
	local r
	for r in 0 1; do
		TUTTI_VERBS_DEVICE="$VERBS_DEV:1,$VERBS_DEV:2" TUTTI_LOCAL_RANK=$r ./verbsinfo >rail.log 2>&1 || [ $r = 1 ] || fail "rail $r: $(cat rail.log)"
	done
	grep -q 'want port 2' rail.log || fail "a rail that there is none of: $(cat rail.log)"
	TUTTI_VERBS_DEVICE="$VERBS_DEV:1,$VERBS_DEV" bench grpc+verbs -op allreduce -min 64Ki -max 64Ki
}

# pair is rank VERBS_RANK on one of two machines.
pair() {
	export TUTTI_HOSTS=10.99.0.1:4000,10.99.0.2:4000 TUTTI_RANK=$VERBS_RANK TUTTI_SECRET=0123456789abcdef0123456789abcdef
	say "the transport between two machines"
	TRANSPORTTEST_DIVISOR=5 tests verbs.test DevicesOfTwoMachines
	say "every call between two machines"
	tests comm.test DevicesOfTwoMachines
	say "allreduce between two machines"
	timeout -k 10 120 ./tuttibench -op allreduce -transport grpc+verbs -min 8 -max 256Ki -factor 512 || fail "allreduce: $(ended $?)"
	say "auto between two machines"
	# A static list says nothing of devices; what ranks tell rank 0 does. auto takes RDMA, which does
	# not encrypt, only where nothing is to be encrypted.
	env -u TUTTI_HOSTS TUTTI_INSECURE_PLAIN=1 TUTTI_SIZE=2 TUTTI_ROOT=10.99.0.1:4001 TUTTI_LISTEN="$VERBS_IP" TUTTI_REPORT_TRANSPORT=1 \
		timeout 100 ./tuttibench -op allreduce -transport auto -min 64Ki -max 64Ki >auto.log 2>&1 || { took=$?; cat auto.log; fail "auto: $(ended $took)"; }
	cat auto.log
	grep -q ': verbs: .*both have RDMA devices: roce2-ipv4' auto.log || fail "auto did not take verbs"
	say "the digits between two machines"
	TUTTI_TRANSPORT=grpc+verbs timeout 200 ./digits -epochs 2 -out /tmp/digits || fail "the digits: $(ended $?)"
	say "done"
}

soak() {
	say "$TUTTI_SOAK steps"
	tests comm.test '^TestDeviceSoak' 100m
	loss 1000 30s
	say "done"
}

hang() {
	say "a step that hangs"
	sleep 1000 >/dev/null # who waits for what this prints does not wait for this
}

trap 'rm -f "$noted"' EXIT
if [ -z "${WITHIN:-}" ]; then
	"$1"
	exit
fi
# Beside watch, so that nothing it waits for keeps that from ending it all.
"$1" &
work=$!
watch &
status=0
wait -n || status=$?
kill $(jobs -p) 2>/dev/null || :
kill -CONT $(jobs -p) 2>/dev/null || :
exit $status
