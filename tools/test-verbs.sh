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
$GO build -tags verbs -o "$job/" ./cmd/tuttirun ./cmd/tuttibench

cat >"$job/run" <<'END'
#!/bin/bash
# In the VM, which is emulated and slow.
set -euo pipefail
export TRANSPORTTEST_PATIENCE=60s
./verbs.test -test.run Device -test.v -test.timeout 400s | grep -v '^=== ' | grep -v -e '--- SKIP' -e 'is not a transport'
# Right results; the times are an emulated machine's, to be compared with each other only.
for t in grpc grpc+verbs tcp+verbs; do
	echo "two processes over $t"
	./tuttirun -np 2 ./tuttibench -op pingpong -transport $t -min 8 -max 512Ki -factor 16
	./tuttirun -np 2 ./tuttibench -op allreduce -transport $t -min 8 -max 8Mi -factor 32
done
echo "three processes over grpc+verbs"
./tuttirun -np 3 ./tuttibench -op allreduce -transport grpc+verbs -min 64Ki -max 64Ki
END
chmod 755 "$job/run"
tools/verbs-vm run -t 600 "$job" ./run
