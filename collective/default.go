package collective

// DefaultTable holds the rules for when nothing was measured.
func DefaultTable() *Table {
	t, err := NewTable(nil, DefaultRules())
	if err != nil {
		panic(err) // a slip in DefaultRules, which every test of the table would find
	}
	return t
}

// DefaultRules are those of DefaultTable.
func DefaultRules() []TableRule {
	rule := func(verb Verb, name string, maxBytes uint64) TableRule {
		a, err := Find(verb, name)
		if err != nil {
			panic(err) // a slip in the lines below, which every test of the table would find
		}
		return TableRule{Algorithm: a, MaxBytes: maxBytes}
	}
	const small = 64 << 10 // below it the number of steps decides, above it the bytes
	// From here on what has been folded is no longer in the cache when it is sent on,
	// unless a stretch after the other makes its laps: then an allreduce over loopback
	// took 7.1 ms instead of 8.1 for 16 MiB, and 30 instead of 33 for 64 MiB (two ranks
	// on two cores of an AMD EPYC; 1.49 and 1.59 ms, which is no difference, for 4 MiB):
	//	TUTTI_ALGORITHM=allreduce:segmented_ring tuttirun -np 2 tuttibench -transport tcp -min 4Mi
	const large = 8 << 20
	// Up to tiny the number of steps decides also on ranks that are no power of two, which
	// move more bytes in few steps than in many. Up to long three and four ranks reduce
	// up a tree, whole vectors, in less time than across, in chunks. Beyond tall a chain,
	// which waits for no whole vector, brings a broadcast down sooner than a tree.
	// docs/adr/0021 has the figures of these, and of what is said of ranks below.
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
