package poll

import "sync/atomic"

// A Gate guards the life of a descriptor, or of a mapping. Users enter before they use it and exit
// afterwards. Close keeps new users out. The last user to exit a closed gate releases the
// descriptor. Therefore no user can use a descriptor number that already belongs to another file.
//
// One of the users may be the reader, a role that belongs to Conn.Progress. The zero Gate is open.
// Any goroutine may call its methods, and none of them waits.
//
//	word            state
//	0               open, nobody inside
//	users, reader   open, in use
//	closed|users    closed; the last one to exit releases
//	closed          closed and released
type Gate struct{ word atomic.Uint32 }

const (
	gateClosed = 1 << iota
	gateReader // a goroutine is in Progress
	gateUser   // the unit in which all users other than the reader are counted
)

// An Entry is the result of EnterReader.
type Entry uint8

// The results of EnterReader.
const (
	Entered    Entry = iota // the caller is the reader
	Occupied                // another goroutine is the reader
	GateClosed              // the gate is closed
)

// EnterReader takes the reader's role if it is free. It never waits.
func (g *Gate) EnterReader() Entry {
	for {
		w := g.word.Load()
		switch {
		case w&gateClosed != 0:
			return GateClosed
		case w&gateReader != 0:
			return Occupied
		case g.word.CompareAndSwap(w, w|gateReader):
			return Entered
		}
	}
}

// ExitReader ends the reader's role. If last is true, the caller must release what the gate guards.
func (g *Gate) ExitReader() (last bool) {
	return g.word.Add(^uint32(gateReader-1)) == gateClosed
}

// Enter admits one more user. It returns false if the gate is closed.
func (g *Gate) Enter() bool {
	for {
		w := g.word.Load()
		if w&gateClosed != 0 {
			return false
		}
		if g.word.CompareAndSwap(w, w+gateUser) {
			return true
		}
	}
}

// Exit ends a use. If last is true, the caller must release what the gate guards.
func (g *Gate) Exit() (last bool) {
	return g.word.Add(^uint32(gateUser-1)) == gateClosed
}

// Close keeps new users out. The result first is true for only one caller. If last is true, no user
// is inside, and the caller must release what the gate guards.
func (g *Gate) Close() (first, last bool) {
	old := g.word.Or(gateClosed)
	first = old&gateClosed == 0
	return first, first && old == 0
}

// IsClosed reports whether Close was called.
func (g *Gate) IsClosed() bool { return g.word.Load()&gateClosed != 0 }
