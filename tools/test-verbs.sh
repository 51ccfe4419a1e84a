#!/usr/bin/env bash
# test-verbs.sh builds tutti with its RDMA transports and tests them on libibverbs
# over soft-RoCE, in a VM that tools/verbs-vm makes: the transport's own tests with
# the conformance suite on the device, then ranks as processes. It needs gcc and
# libibverbs-dev, which it asks apt for when they are missing and it is root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
GO=${GO:-go}

for p in gcc libibverbs-dev; do
	dpkg -s "$p" >/dev/null 2>&1 && continue
	if [ "$(id -u)" != 0 ]; then
		echo "missing: Debian package $p" >&2
		exit 1
	fi
	apt-get update -q && apt-get install -y -q --no-install-recommends "$p"
done

job=$(mktemp -d)
trap 'rm -rf "$job"' EXIT
export CGO_ENABLED=1
$GO test -tags verbs -c -o "$job/verbs.test" ./transport/verbs
$GO build -tags verbs -o "$job/" ./cmd/tuttirun ./cmd/tuttibench ./cmd/verbsinfo

cat >"$job/run" <<'END'
#!/bin/bash
# In the VM, which is emulated and slow.
set -euo pipefail
export TRANSPORTTEST_PATIENCE=60s
./verbsinfo
./verbs.test -test.run Device -test.v -test.timeout 400s | grep -v '^=== ' | grep -v -e '--- SKIP' -e 'is not a transport'
# Right results; the times are an emulated machine's, to be compared with each other only.
for t in grpc grpc+verbs tcp+verbs; do
	echo "two processes over $t"
	./tuttirun -np 2 ./tuttibench -op pingpong -transport $t -min 8 -max 512Ki -factor 16
	./tuttirun -np 2 ./tuttibench -op allreduce -transport $t -min 8 -max 8Mi -factor 32
done
echo "three processes over grpc+verbs"
./tuttirun -np 3 ./tuttibench -op allreduce -transport grpc+verbs -min 64Ki -max 64Ki

# A job that is made to fail must end soon, with status 1 and the cause in its output.
must_fail() { # WHAT WANTED: the job runs in the background, its output in fault.log
	local status=0
	wait "$job" || status=$?
	if [ "$status" = 0 ] || [ "$status" = 124 ] || ! grep -q "$2" fault.log; then
		echo "FAIL: $1: status $status, want an error with \"$2\":"; cat fault.log; exit 1
	fi
	echo "ok: $1: $(grep -m 1 -o "$2.*" fault.log | cut -c 1-120)"
}
start() { # a job that would go on for long; returns once it is in its calls
	timeout 60 ./tuttirun -np 2 ./tuttibench -op allreduce -transport grpc+verbs -min 1Mi -max 1Mi -time 50s >fault.log 2>&1 &
	job=$!
	for i in $(seq 200); do ! grep -q median fault.log || break; sleep 0.1; done
	sleep 1
}
start; kill -9 "$(pgrep -x tuttibench | head -n 1)"; must_fail "SIGKILL of a rank" "peer lost"
start; ip link set "$VERBS_NETDEV" down; must_fail "link down" "local queue pair operation error"
ip link set "$VERBS_NETDEV" up
for i in $(seq 100); do ! grep -q 0000:ffff: "/sys/class/infiniband/$VERBS_DEV/ports/1/gids/$VERBS_GID" || break; sleep 0.1; done
TUTTI_VERBS_GID_INDEX=9 ./tuttirun -np 2 ./tuttibench -transport grpc+verbs >fault.log 2>&1 & job=$!
must_fail "a GID that there is none of" "GIDs is what was asked for"

echo "two processes over a link that loses 1 % of its packets"
tc qdisc add dev "$VERBS_NETDEV" root netem loss 1%
timeout 100 ./tuttirun -np 2 ./tuttibench -op allreduce -transport grpc+verbs -min 1Ki -max 256Ki -factor 16 -time 100ms
tc qdisc del dev "$VERBS_NETDEV" root
END
chmod 755 "$job/run"
tools/verbs-vm run -t 600 "$job" ./run
