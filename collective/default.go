package collective

// DefaultTable returns the table that is used without a tuning file.
func DefaultTable() *Table {
	t, err := NewTable(nil, DefaultRules())
	if err != nil {
		panic(err) // a bug in DefaultRules, which every test of the table finds
	}
	return t
}

// DefaultRules returns the rules of DefaultTable. Algorithms in shared memory come first, then
// hierarchical ones, then those over messages; a Chooser leaves out what a communicator cannot
// use. The figures are from docs/adr/0021 and the comments below, and are right within a factor
// on most machines: tuttibench tune measures better ones.
func DefaultRules() []TableRule {
	rule := func(verb Verb, name string, maxBytes uint64) TableRule {
		a, err := Find(verb, name)
		if err != nil {
			panic(err) // a bug in the rules below, which every test of the table finds
		}
		return TableRule{Algorithm: a, MaxBytes: maxBytes}
	}
	// Up to small, the number of steps decides; above it, the bytes.
	const small = 64 << 10
	// Above large, what a rank has folded is no longer in its cache when it sends it on,
	// unless the ring handles one subrange after the other. An allreduce over loopback
	// then took 7.1 ms instead of 8.1 for 16 MiB, and 30 instead of 33 for 64 MiB. At
	// 4 MiB there was no difference. (Two ranks on two cores of an AMD EPYC:
	//	TUTTI_ALGORITHM=allreduce:segmented_ring tuttirun -np 2 tuttibench -transport tcp -min 4Mi)
	const large = 8 << 20
	// Up to tiny, few steps also pay where the ranks are no power of two, which then
	// move more bytes. Up to long, three and four ranks reduce whole vectors up a tree
	// faster than they reduce chunks across. Above tall, a chain broadcasts faster than
	// a tree, because it does not wait for whole vectors. docs/adr/0021 has the figures
	// of these, and of the numbers of ranks below.
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
