#!/bin/bash
# check.sh checks the models of the negotiation with spin: no error within some small bounds, and each
# of the bugs that can be planted in them is found.
set -euo pipefail
cd "$(dirname "$0")"
models=$PWD
model=$models/negotiation.pml
source ../../../tools/spin.sh

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
