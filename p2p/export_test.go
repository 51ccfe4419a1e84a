package p2p

// Window is the maximum number of segments in flight in each direction.
const Window = window

// SeesFlagSetWhileFallingAsleep reports whether a rank that is about to sleep sees a flag that is
// set at the last moment, when it stores its asleep word. The flag is that very word, so that the
// flag is set neither earlier nor later.
func (r *Round) SeesFlagSetWhileFallingAsleep() bool {
	var word uint64
	ev := flagEvent{coll: r.g.collectives, e: r.g.e, worldRank: r.sub.ranks[r.sub.rank], flag: &word, asleep: &word, count: 1}
	return ev.Met()
}

// ScratchCount returns how many pieces of scratch memory the round holds.
func (r *Round) ScratchCount() int { return len(r.scratch) }
