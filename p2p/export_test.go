package p2p

// Window is how many segments are under way each way.
const Window = window

// Held is how many pieces of scratch memory the round holds.
func (r *Round) Held() int { return len(r.scratch) }
