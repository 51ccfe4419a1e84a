package p2p

// An Act is what a rank does in a round that concerns another.
type Act uint8

// The acts.
const (
	Sends      Act = iota + 1 // it begins to send a message
	Receives                  // it has received one, and folded it
	ShowsReady                // it is about to set its flags of a piece
	ShowsDone
	SeesReady // it has seen another's, or its own
	SeesDone
)

// A Sight is one act of a rank, as an observer is told it.
type Sight struct {
	Act   Act
	Peer  int   // the job's rank of whom it concerns; whose flag it is
	Piece Piece // whose flag it is; of messages, none
}

// Observe has see called for what this rank does in the group's rounds of all
// members and of some, in the order in which it does so, on its own goroutine.
// What a flag publishes lies in place when see is told that it is shown. It comes
// before the group's first round; tests redraw the algorithms' drawings with it.
func (g *Group) Observe(see func(Sight)) { g.see = see }

// Number tells a piece from all others of its memory; it is equal on all members.
func (p Piece) Number() uint64 { return p.n }
