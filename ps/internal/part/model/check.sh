#!/bin/bash
# check.sh checks part.pml with spin: no error within small bounds, and each bug that can be planted
# is found.
set -euo pipefail
cd "$(dirname "$0")"
model=$PWD/part.pml
source ../../../../tools/spin.sh

correct "PUSHES=2" "PUSHES=2 WORKER=1" "PUSHES=1 SYNC=0" "PUSHES=1 SYNC=0 WORKER=1"
finds "PUSHES=1 BUG=1" "the primary acknowledges before the replica has the push"
finds "PUSHES=1 BUG=2" "a push that comes again is applied again"
finds "PUSHES=1 SYNC=0 BUG=3" "the primary shows what the replica does not have"
finds "PUSHES=2 WORKER=1 BUG=4" "an epoch begins with different copies"
finds "PUSHES=1 BUG=5" "workers do not send again"
finds "PUSHES=2 BUG=6" "a push of the next round is taken before the round is complete"
finds "PUSHES=1 WORKER=1 BUG=7" "a round waits for a worker that is lost"
