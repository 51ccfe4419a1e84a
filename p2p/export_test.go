package p2p

// Window is the maximum number of segments in flight in each direction.
const Window = window

// SeesFlagSetWhileFallingAsleep reports whether a rank that is about to sleep sees a flag that is
// set at the last moment, when the rank stores its asleep word. The asleep word itself serves as
// the flag, so that the flag is set exactly then.
func (r *Round) SeesFlagSetWhileFallingAsleep() bool {
	var word uint64
	ev := flagEvent{coll: r.g.collectives, e: r.g.e, worldRank: r.sub.ranks[r.sub.rank], flag: &word, asleep: &word, count: 1}
	return ev.Met()
}

// ScratchCount returns the number of pieces of scratch memory that the round holds.
func (r *Round) ScratchCount() int { return len(r.scratch) }
