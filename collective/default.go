package collective

// DefaultTable returns the table that is used without a tuning file.
func DefaultTable() *Table {
	t, err := NewTable(nil, DefaultRules())
	if err != nil {
		panic(err) // a bug in DefaultRules; every test of the table would fail
	}
	return t
}

// DefaultRules returns the rules of DefaultTable. Algorithms in shared memory come first, then
// hierarchical algorithms, then all other algorithms. A Chooser drops the rules that a communicator
// cannot use. docs/adr/0021 and the comments below explain the limits. They are approximate;
// tuttibench tune measures better limits for a machine.
func DefaultRules() []TableRule {
	rule := func(verb Verb, name string, maxBytes uint64) TableRule {
		a, err := Find(verb, name)
		if err != nil {
			panic(err) // a bug in the rules below; every test of the table would fail
		}
		return TableRule{Algorithm: a, MaxBytes: maxBytes}
	}
	// For vectors of up to small bytes, the number of steps determines the time. For longer
	// vectors, the number of bytes moved determines it.
	const small = 64 << 10
	// If a vector has more than large bytes, a chunk that a rank has folded is no longer in the
	// cache when the rank sends it on. The segmented ring avoids this, because it handles one short
	// subrange after the other. It reduced the time of an allreduce over loopback from 8.1 to 7.1
	// ms for 16 MiB, and from 33 to 30 ms for 64 MiB. At 4 MiB there was no difference. (Two ranks
	// on two cores of an AMD EPYC:
	//	TUTTI_ALGORITHM=allreduce:segmented_ring tuttirun -np 2 tuttibench -transport tcp -min 4Mi)
	const large = 8 << 20
	// These constants are limits in bytes. Up to the limit tiny, algorithms with few steps are
	// faster even if the number of ranks is not a power of two, although they move more bytes in
	// that case. Up to the limit long, three or four ranks reduce whole vectors through a tree
	// faster than they reduce chunks pairwise. Above the limit tall, a chain broadcasts faster than
	// a tree, because its ranks do not wait for whole vectors. docs/adr/0021 has the measurements
	// for these limits, and for the numbers of ranks below.
	const tiny, long, tall = 8 << 10, 2 << 20, 4 << 20
	among := func(least, most uint32, u TableRule) TableRule {
		u.MinRanks, u.MaxRanks = least, most
		return u
	}
	return []TableRule{
		rule(VerbAllReduce, shared, 0),
		rule(VerbReduce, shared, 0),
		rule(VerbBroadcast, shared, 0),
		rule(VerbAllGather, shared, 0),
		rule(VerbAllGatherV, shared, 0),
		rule(VerbReduceScatter, shared, 0),
		rule(VerbReduceScatterV, shared, 0),
		rule(VerbAllToAll, shared, 0),
		rule(VerbBarrier, shared, 0),
		rule(VerbAllReduce, hierarchical, small),
		rule(VerbAllReduce, hierarchicalSplit, 0),
		rule(VerbReduce, hierarchical, 0),
		rule(VerbBroadcast, hierarchical, 0),
		rule(VerbAllGather, hierarchical, small),
		rule(VerbReduceScatter, hierarchical, 0),
		rule(VerbReduceScatterV, hierarchical, 0),
		rule(VerbBarrier, hierarchical, 0),
		rule(VerbScan, shared, 0),
		rule(VerbExScan, shared, 0),
		rule(VerbAllReduce, "recursive_doubling", small),
		rule(VerbAllReduce, "ring", large),
		rule(VerbAllReduce, "segmented_ring", 0),
		rule(VerbAllReduce, "pairwise", 0),
		among(0, 2, rule(VerbReduce, "linear", 0)),
		among(3, 4, rule(VerbReduce, "binomial", long)),
		rule(VerbReduce, "binomial", small),
		rule(VerbReduce, "linear", small),
		rule(VerbReduce, "pairwise", 0),
		rule(VerbBroadcast, "binomial", tall),
		among(3, 64, rule(VerbBroadcast, "chain", 0)),
		rule(VerbBroadcast, "binomial", 0),
		rule(VerbAllGather, "bruck", small),
		rule(VerbAllGather, "ring", 0),
		among(4, 4, rule(VerbAllGatherV, "recursive_doubling", small)),
		among(5, 0, rule(VerbAllGatherV, "recursive_doubling", tiny)),
		rule(VerbAllGatherV, "ring", 0),
		rule(VerbGather, "binomial", small),
		rule(VerbGather, "linear", 0),
		rule(VerbScatter, "binomial", small),
		rule(VerbScatter, "linear", 0),
		among(4, 4, rule(VerbReduceScatter, "recursive_halving", small)),
		among(5, 0, rule(VerbReduceScatter, "recursive_halving", tiny)),
		rule(VerbReduceScatter, "pairwise", 0),
		among(4, 4, rule(VerbReduceScatterV, "recursive_halving", small)),
		among(5, 0, rule(VerbReduceScatterV, "recursive_halving", tiny)),
		rule(VerbReduceScatterV, "pairwise", 0),
		among(4, 0, rule(VerbAllToAll, "bruck", small)),
		rule(VerbAllToAll, "pairwise", 0),
		rule(VerbScan, "recursive_doubling", small),
		rule(VerbScan, "chain", 0),
		rule(VerbExScan, "recursive_doubling", small),
		rule(VerbExScan, "chain", 0),
	}
}
