package p2p

// Window is how many segments are under way each way.
const Window = window

// SeesWhatComesAsItFallsAsleep reports whether a rank that is about to sleep sees a flag
// that is set at the last moment, when it says that it sleeps. The flag is the very word
// by which it says so, so that no flag can be set later, and none that is be seen before.
func (r *Round) SeesWhatComesAsItFallsAsleep() bool {
	var word uint64
	ev := flagEvent{coll: r.g.coll, e: r.g.e, world: r.on.ranks[r.on.rank], flag: &word, asleep: &word, count: 1}
	return ev.Met()
}

// Held is how many pieces of scratch memory the round holds.
func (r *Round) Held() int { return len(r.scratch) }
