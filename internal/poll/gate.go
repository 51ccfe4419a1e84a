package poll

import "sync/atomic"

// A Gate guards the life of a descriptor, or of a mapping. Whoever uses it is
// inside; shutting keeps others out, and whoever leaves a shut gate last gives it
// back, so that it is never used once it may be somebody else's. One of those
// inside may be the reader, which is the role of Conn.Progress. The zero Gate is
// open; its methods may be called by anyone, and none waits.
type Gate struct{ word atomic.Uint32 }

const (
	gateClosed = 1 << iota
	gateReader // somebody is in Progress
	gateUser   // the unit in which all others are counted
)

// An Entry is what trying to become the reader found.
type Entry uint8

// The results of EnterReader.
const (
	Entered    Entry = iota // the caller is the reader
	Occupied                // somebody else is
	GateClosed              // the gate is shut
)

// EnterReader takes the reader's role; it never waits for it.
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

// ExitReader ends the role; true asks the caller to give back what the gate
// guards.
func (g *Gate) ExitReader() (last bool) {
	return g.word.Add(^uint32(gateReader-1)) == gateClosed
}

// Enter lets one more user in; false when the gate is shut.
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

// Exit lets one user out; true asks the caller to give back what the gate guards.
func (g *Gate) Exit() (last bool) {
	return g.word.Add(^uint32(gateUser-1)) == gateClosed
}

// Close keeps others out. first is true for one caller only; last asks it to
// give back what the gate guards, because nobody is inside.
func (g *Gate) Close() (first, last bool) {
	old := g.word.Or(gateClosed)
	first = old&gateClosed == 0
	return first, first && old == 0
}

// IsClosed reports whether Shut was called.
func (g *Gate) IsClosed() bool { return g.word.Load()&gateClosed != 0 }
