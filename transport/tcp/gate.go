package tcp

import "sync/atomic"

// A gate guards a descriptor's life. Whoever uses the descriptor is inside;
// shutting keeps others out, and whoever leaves a shut gate last closes the
// descriptor, so that its number is never used once it may be somebody else's.
// One of those inside may be the reader, which is the role of Conn.Progress.
type gate struct{ word atomic.Uint32 }

const (
	gateShut   = 1 << iota
	gateReader // somebody is in Progress
	gateUser   // the unit in which all others are counted
)

// An entry is what trying to become the reader found.
type entry uint8

const (
	entered entry = iota
	occupied
	shut
)

// enterReader takes the reader's role; it never waits for it.
func (g *gate) enterReader() entry {
	for {
		w := g.word.Load()
		switch {
		case w&gateShut != 0:
			return shut
		case w&gateReader != 0:
			return occupied
		case g.word.CompareAndSwap(w, w|gateReader):
			return entered
		}
	}
}

// leaveReader gives the role back; true asks the caller to close the descriptor.
func (g *gate) leaveReader() (last bool) {
	return g.word.Add(^uint32(gateReader-1)) == gateShut
}

// enter lets one more user in; false when the gate is shut.
func (g *gate) enter() bool {
	for {
		w := g.word.Load()
		if w&gateShut != 0 {
			return false
		}
		if g.word.CompareAndSwap(w, w+gateUser) {
			return true
		}
	}
}

// leave lets one user out; true asks the caller to close the descriptor.
func (g *gate) leave() (last bool) {
	return g.word.Add(^uint32(gateUser-1)) == gateShut
}

// shut keeps others out. first is true for one caller only; last asks it to
// close the descriptor, because nobody is inside.
func (g *gate) shut() (first, last bool) {
	old := g.word.Or(gateShut)
	first = old&gateShut == 0
	return first, first && old == 0
}

// isShut reports whether shut was called.
func (g *gate) isShut() bool { return g.word.Load()&gateShut != 0 }
